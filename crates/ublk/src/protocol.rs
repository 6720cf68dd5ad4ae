//! Structures and numbers of the driver, from the interface `include/uapi/linux/ublk_cmd.h` of
//! Linux 6.0 to 7.1. All are in the byte order of the machine.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The driver's control device.
pub(crate) const CONTROL_DEVICE: &str = "/dev/ublk-control";
/// Limit of requests in one queue; it determines where the descriptors of a queue are mapped.
pub(crate) const QUEUE_DEPTH_MAX: usize = 4096;
/// Number of the disk in a command that adds one with any number, and in one that needs none.
pub(crate) const ANY_DISK: u32 = u32::MAX;

/// `_IOR` and `_IOWR` of linux/ioctl.h, with the type `'u'`.
const fn code(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

/// A command to the control device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ControlOperation {
    GetQueueAffinity = code(2, 0x01, size_of::<ControlCommand>()),
    AddDevice = code(3, 0x04, size_of::<ControlCommand>()),
    DeleteDevice = code(3, 0x05, size_of::<ControlCommand>()),
    StartDevice = code(3, 0x06, size_of::<ControlCommand>()),
    StopDevice = code(3, 0x07, size_of::<ControlCommand>()),
    SetParameters = code(3, 0x08, size_of::<ControlCommand>()),
    GetParameters = code(2, 0x09, size_of::<ControlCommand>()),
    StartRecovery = code(3, 0x10, size_of::<ControlCommand>()),
    EndRecovery = code(3, 0x11, size_of::<ControlCommand>()),
    /// Like the older command for it, for an owner without privileges as well.
    GetDeviceInfo = code(2, 0x12, size_of::<ControlCommand>()),
    GetFeatures = code(2, 0x13, size_of::<ControlCommand>()),
    /// Linux 6.16.
    UpdateSize = code(3, 0x15, size_of::<ControlCommand>()),
    /// Stops a disk that no process has open; Linux 7.0.
    TryStopDevice = code(3, 0x17, size_of::<ControlCommand>()),
}

/// A command of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum QueueOperation {
    Fetch = code(3, 0x20, size_of::<QueueCommand>()),
    CommitAndFetch = code(3, 0x21, size_of::<QueueCommand>()),
}

/// `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ControlCommand {
    pub dev_id: u32,
    pub queue_id: u16,
    /// Bytes at `addr`, the path included.
    pub len: u16,
    pub addr: u64,
    pub data: u64,
    /// Bytes of the path of the character device at the start of `addr`, with its NUL.
    pub dev_path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}

/// `struct ublksrv_io_cmd`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QueueCommand {
    pub q_id: u16,
    pub tag: u16,
    pub result: i32,
    pub addr: u64,
}

/// `struct ublksrv_io_desc`: a request.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub op_flags: u32,
    pub nr_sectors: u32,
    pub start_sector: u64,
    pub addr: u64,
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub nr_hw_queues: u16,
    pub queue_depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub max_io_buf_bytes: u32,
    pub dev_id: u32,
    pub ublksrv_pid: i32,
    pub pad1: u32,
    pub flags: u64,
    /// The driver stores it for the server.
    pub ublksrv_flags: u64,
    pub owner_uid: u32,
    pub owner_gid: u32,
    pub reserved: [u64; 2],
}

/// `struct ublk_params` up to `discard`; the driver accepts shorter ones.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Parameters {
    pub len: u32,
    pub types: u32,
    pub basic: BasicParameters,
    pub discard: DiscardParameters,
    /// `devt` and `zoned`, which the driver fills or ignores, and padding.
    pub rest: [u32; 13],
}

/// `struct ublk_param_basic`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BasicParameters {
    pub attrs: u32,
    pub logical_bs_shift: u8,
    pub physical_bs_shift: u8,
    pub io_opt_shift: u8,
    pub io_min_shift: u8,
    pub max_sectors: u32,
    pub chunk_sectors: u32,
    pub dev_sectors: u64,
    pub virt_boundary_mask: u64,
}

/// `struct ublk_param_discard`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DiscardParameters {
    pub discard_alignment: u32,
    pub discard_granularity: u32,
    pub max_discard_sectors: u32,
    pub max_write_zeroes_sectors: u32,
    pub max_discard_segments: u16,
    pub reserved0: u16,
}

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<QueueCommand>() == 16);
const _: () = assert!(size_of::<Descriptor>() == 24);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<BasicParameters>() == 32);
const _: () = assert!(size_of::<DiscardParameters>() == 20);
const _: () = assert!(std::mem::offset_of!(Parameters, discard) == 40);

bitflags! {
    /// `UBLK_PARAM_TYPE_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ParameterTypes: u32 {
        const BASIC = 1 << 0;
        const DISCARD = 1 << 1;
    }

    /// `UBLK_ATTR_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Attributes: u32 {
        const READ_ONLY = 1 << 0;
        const VOLATILE_CACHE = 1 << 2;
        const FUA = 1 << 3;
    }

    /// `UBLK_F_*`: features of the driver, and flags of a disk.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u64 {
        /// The disk stays when its server dies.
        const USER_RECOVERY = 1 << 3;
        /// The next server gets the requests that the dead one had.
        const USER_RECOVERY_REISSUE = 1 << 4;
        /// A disk of a user without privileges.
        const UNPRIVILEGED_DEV = 1 << 5;
        /// Commands have the numbers above; Linux 6.5.
        const CMD_IOCTL_ENCODE = 1 << 6;
        const UPDATE_SIZE = 1 << 10;
        const SAFE_STOP_DEV = 1 << 17;
    }

    /// `UBLK_IO_F_*`: flags of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct RequestFlags: u32 {
        const FUA = 1 << 13;
        /// Zeroed space stays allocated.
        const NO_UNMAP = 1 << 15;
    }
}

/// `UBLK_IO_OP_*`.
pub(crate) mod operation {
    pub(crate) const READ: u8 = 0;
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const FLUSH: u8 = 2;
    pub(crate) const DISCARD: u8 = 3;
    pub(crate) const WRITE_ZEROES: u8 = 5;
}

/// `UBLK_S_DEV_*`.
pub(crate) mod state {
    /// Added and not started, or stopped.
    pub(crate) const DEAD: u16 = 0;
    pub(crate) const LIVE: u16 = 1;
    /// Its server died; requests wait for the next one.
    pub(crate) const QUIESCED: u16 = 2;
    /// The same, and requests fail.
    pub(crate) const FAIL_IO: u16 = 3;
}
