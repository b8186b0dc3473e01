"""The files of a claim: written before the kubelet is answered, made again when they are lost, taken away at the end.

They follow the record. The record of a claim is there before its files and goes after them, so whoever finds a file
without one has found what a crash of the host left, which the claim's name and UID keep from meaning anything else.
"""

from dra_publisher.cdi.files import CDIFiles
from dra_publisher.cdi.specs import CDIFile
from dra_publisher.claims.preparing import files_of
from dra_publisher.metadata.files import MetadataFiles
from node_host.evidence.checkpoint import PreparedClaim
from node_host.host import Host


class FilesOfClaims:
    """Of one host. Methods raise OSError, and do no harm when they are called again."""

    def __init__(self, host: Host) -> None:
        self._cdi = CDIFiles(host)
        self._metadata = MetadataFiles(host)

    def write(self, claim: PreparedClaim, driver: str, *, is_new: bool = False) -> None:
        """Make all be there; what is there as it should be is left alone."""
        files = files_of(claim, driver)
        self._metadata.write(files.metadata)
        wanted = (*files.cdi, *(CDIFile(one.cdi_name, one.cdi_content) for one in files.metadata))
        if is_new:
            self._cdi.put(wanted)
        else:
            self._cdi.write(wanted)

    def remove(self, driver: str, namespace: str, name: str, uid: str) -> None:
        """Take all away, known or not."""
        self._cdi.remove(driver, uid)
        self._metadata.remove(driver, namespace, name, uid)
