"""The publisher's half of a hand-over: pure judgement stage by stage, the steps that follow, and what they work on."""
