"""vGPUs as a host has them: types of virtual functions, mediated devices, and the driver that makes them."""
