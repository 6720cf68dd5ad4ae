//! Operations on extended attributes.

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{Call, Server, privileges};
use crate::operations::{Privileges, Result};
use crate::protocol::connection::Capabilities;
use crate::protocol::xattrs::{
    GetxattrIn, GetxattrOut, SETXATTR_ACL_KILL_SGID, SetxattrExtension, SetxattrIn,
};

impl Server {
    pub(super) fn setxattr(&self, call: &mut Call<'_>) -> Result<usize> {
        let setxattr: SetxattrIn = call.body.take()?;
        let privileges = if self.agreed.contains(Capabilities::SETXATTR_EXT) {
            let extension: SetxattrExtension = call.body.take()?;
            privileges(extension.setxattr_flags, SETXATTR_ACL_KILL_SGID)
        } else {
            Privileges::Keep
        };
        let name = call.body.take_name()?;
        let value = call.body.take_bytes(setxattr.size)?;
        let flags = XattrFlags::from_bits_retain(setxattr.flags);
        let operations = &self.operations;
        operations.set_xattr(&call.request, call.node, name, value, flags, privileges)?;
        Ok(0)
    }

    pub(super) fn getxattr(&self, call: &mut Call<'_>) -> Result<usize> {
        let getxattr: GetxattrIn = call.body.take()?;
        let name = call.body.take_name()?;
        call.scratch.clear();
        let operations = &self.operations;
        operations.xattr(&call.request, call.node, name, call.scratch)?;
        put_value(call, getxattr.size)
    }

    pub(super) fn listxattr(&self, call: &mut Call<'_>) -> Result<usize> {
        let getxattr: GetxattrIn = call.body.take()?;
        call.scratch.clear();
        let names = &mut *call.scratch;
        let operations = &self.operations;
        operations.list_xattrs(&call.request, call.node, &mut |name| {
            names.extend_from_slice(name);
            names.push(0);
        })?;
        put_value(call, getxattr.size)
    }

    pub(super) fn removexattr(&self, call: &mut Call<'_>) -> Result<usize> {
        let name = call.body.take_name()?;
        let operations = &self.operations;
        operations.remove_xattr(&call.request, call.node, name)?;
        Ok(0)
    }
}

/// Replies with the content of the scratch memory, or with its length if the caller has no room.
fn put_value(call: &mut Call<'_>, room_len: u32) -> Result<usize> {
    match room_len {
        0 => {
            let size = u32::try_from(call.scratch.len()).map_err(|_| Errno::TOOBIG)?;
            Ok(call.reply.put(&GetxattrOut { size, padding: 0 }))
        }
        room_len => call.reply.put_bytes(call.scratch, room_len),
    }
}
