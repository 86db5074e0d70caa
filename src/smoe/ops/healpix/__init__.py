"""HEALPix spheres: orders of pixels, coordinates, and faces padded by their neighbours."""

from smoe.ops.healpix.halo import border_sources, pad_faces
from smoe.ops.healpix.pixel_orders import (
    HEALPIX_ORDERS,
    HEALPixOrder,
    check_healpix_coordinates,
    check_nside,
    face_pixels,
    healpix_coordinates,
    permute_pixels,
)

__all__ = [
    "HEALPIX_ORDERS",
    "HEALPixOrder",
    "border_sources",
    "check_healpix_coordinates",
    "check_nside",
    "face_pixels",
    "healpix_coordinates",
    "pad_faces",
    "permute_pixels",
]
