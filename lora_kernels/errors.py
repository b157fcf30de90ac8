"""Every error the package raises on bad input. Each is raised before anything is changed or launched."""


class LoraKernelError(Exception):
    """Base class: catch this to refuse an adapter or a batch whatever is wrong with it."""


class TargetError(LoraKernelError):
    """A layer, site or slice that the pool's spec does not have."""


class ShapeError(LoraKernelError):
    """A tensor, length or buffer whose shape does not fit the spec or the batch."""


class RankError(LoraKernelError):
    """A rank of zero, or more ranks (of one adapter or of a whole blend) than a slot can hold or a reservation has."""


class DtypeError(LoraKernelError):
    """A dtype that is not a supported floating-point type."""


class DeviceError(LoraKernelError):
    """A tensor that is not on the pool's device, or weights that are on none."""


class NonFiniteError(LoraKernelError):
    """A weight, scale or blend weight that is NaN or infinite (also after the cast to the pool's dtype)."""


class QualityError(LoraKernelError):
    """Weights that 8-bit pages would change by more than the pool allows. `error` is the relative error found."""

    def __init__(self, message: str, error: float) -> None:
        super().__init__(message)
        self.error = error


class SlotError(LoraKernelError):
    """A slot out of range, already taken, or empty where a loaded one is needed."""


class PoolFullError(LoraKernelError):
    """Not enough free pages for the adapter."""


class ExtrasError(LoraKernelError):
    """Extras where they cannot be: in a blend, in rows that are written before the base's product, or in swap."""


class StagingError(LoraKernelError):
    """No room in the pinned memory that loads go through, for longer than a load waits. It may be tried again."""


class ReservationError(LoraKernelError):
    """A reservation of another pool, or in a state that does not allow the call (unwritten, published, cancelled)."""


class BackendError(LoraKernelError):
    """A backend was asked for by name and cannot run here, or a call that CUDA graph capture does not allow."""
