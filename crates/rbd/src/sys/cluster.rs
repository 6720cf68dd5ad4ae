//! A client of a cluster.

use std::ffi::c_char;
use std::ptr;

use extant_space::Result;

use super::library::{Handle, Libraries, libraries};
use super::text::{c_text, check, until_zero};

/// Longest value of an option that is read.
const VALUE_BYTES: usize = 4096;
/// `rados_cluster_fsid` needs 37.
const FSID_BYTES: usize = 64;

/// A client, connected or not. Shut down when dropped.
pub(crate) struct ClusterHandle {
    pub(super) libraries: &'static Libraries,
    pub(super) raw: Handle,
}

// SAFETY: librados serialises what its handles share.
unsafe impl Send for ClusterHandle {}
// SAFETY: as above.
unsafe impl Sync for ClusterHandle {}

impl ClusterHandle {
    /// A client named `client.ID`, with the options' defaults.
    pub(crate) fn new(client: &str) -> Result<Self> {
        let libraries = libraries()?;
        let name = c_text(client)?;
        let mut raw = ptr::null_mut();
        // SAFETY: both texts and the place of the handle live across the call.
        check(unsafe {
            (libraries.rados.rados_create2)(&raw mut raw, c"ceph".as_ptr(), name.as_ptr(), 0)
        })?;
        Ok(Self { libraries, raw })
    }

    /// Reads the configuration; `None`: from the default places.
    pub(crate) fn read_conf(&self, path: Option<&str>) -> Result<()> {
        let path = path.map(c_text).transpose()?;
        let path = path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: `path` is null or a text that lives across the call.
        check(unsafe { (self.libraries.rados.rados_conf_read_file)(self.raw, path) }).map(drop)
    }

    pub(crate) fn set(&self, option: &str, value: &str) -> Result<()> {
        let (option, value) = (c_text(option)?, c_text(value)?);
        // SAFETY: both texts live across the call.
        let code = unsafe {
            (self.libraries.rados.rados_conf_set)(self.raw, option.as_ptr(), value.as_ptr())
        };
        check(code).map(drop)
    }

    pub(crate) fn get(&self, option: &str) -> Result<String> {
        let option = c_text(option)?;
        let mut value = vec![0; VALUE_BYTES];
        // SAFETY: the call writes at most the length of `value` into it.
        check(unsafe {
            (self.libraries.rados.rados_conf_get)(
                self.raw,
                option.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        })?;
        Ok(until_zero(&value))
    }

    pub(crate) fn connect(&self) -> Result<()> {
        // SAFETY: the handle is valid.
        check(unsafe { (self.libraries.rados.rados_connect)(self.raw) }).map(drop)
    }

    pub(crate) fn fsid(&self) -> Result<String> {
        let mut text = [0; FSID_BYTES];
        // SAFETY: the call writes at most the length of `text` into it.
        check(unsafe {
            (self.libraries.rados.rados_cluster_fsid)(
                self.raw,
                text.as_mut_ptr().cast(),
                text.len(),
            )
        })?;
        Ok(until_zero(&text))
    }

    /// The number of this client, as in addresses and locks.
    pub(crate) fn instance(&self) -> u64 {
        // SAFETY: the handle is valid.
        unsafe { (self.libraries.rados.rados_get_instance_id)(self.raw) }
    }

    /// The answer of a monitor to a command in JSON.
    pub(crate) fn monitor(&self, command: &str) -> Result<Vec<u8>> {
        let command = c_text(command)?;
        let mut commands = [command.as_ptr()];
        let (mut answer, mut answer_bytes) = (ptr::null_mut::<c_char>(), 0);
        // SAFETY: the command lives across the call; without places for the status no buffer is
        // made for it.
        let code = unsafe {
            (self.libraries.rados.rados_mon_command)(
                self.raw,
                commands.as_mut_ptr(),
                1,
                ptr::null(),
                0,
                &raw mut answer,
                &raw mut answer_bytes,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let copied = if answer.is_null() {
            Vec::new()
        } else {
            // SAFETY: the answer has that many bytes, and is freed once, here.
            unsafe {
                let copied = std::slice::from_raw_parts(answer.cast::<u8>(), answer_bytes).to_vec();
                (self.libraries.rados.rados_buffer_free)(answer);
                copied
            }
        };
        check(code).map(|_| copied)
    }
}

impl Drop for ClusterHandle {
    fn drop(&mut self) {
        // SAFETY: nothing else has the handle: pools and images keep this value.
        unsafe { (self.libraries.rados.rados_shutdown)(self.raw) };
    }
}
