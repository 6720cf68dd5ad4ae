//! Operations on open directories.

use super::files::sync_scope;
use super::{Call, Server, VALIDITY, open_flags};
use crate::operations::{Handle, Result};
use crate::protocol::directories::{Detail, Records};
use crate::protocol::files::{FsyncIn, OpenIn, OpenOut, ReadIn, ReleaseIn};

impl Server {
    pub(super) fn opendir(&self, call: &mut Call<'_>) -> Result<usize> {
        let open: OpenIn = call.body.take()?;
        let flags = open_flags(open.flags);
        let operations = &self.operations;
        let opened = operations.open_directory(&call.request, call.node, flags)?;
        Ok(call.reply.put(&OpenOut::new(&opened)))
    }

    pub(super) fn readdir(&self, call: &mut Call<'_>) -> Result<usize> {
        self.list(call, Detail::Names)
    }

    pub(super) fn readdirplus(&self, call: &mut Call<'_>) -> Result<usize> {
        self.list(call, Detail::Entries(VALIDITY))
    }

    fn list(&self, call: &mut Call<'_>, detail: Detail) -> Result<usize> {
        let read: ReadIn = call.body.take()?;
        let mut records = Records::new(call.reply.data(read.size)?, detail);
        let handle = Handle(read.fh);
        let listed =
            self.operations
                .list(&call.request, call.node, handle, read.offset, &mut records);
        match (listed, records.used()) {
            (Err(errno), 0) => Err(errno),
            // Listed files count as looked up, so the kernel must receive the list; the error is
            // returned by the next call.
            (_, used) => Ok(used),
        }
    }

    pub(super) fn releasedir(&self, call: &mut Call<'_>) -> Result<usize> {
        let release: ReleaseIn = call.body.take()?;
        let handle = Handle(release.fh);
        self.operations
            .release_directory(&call.request, call.node, handle);
        Ok(0)
    }

    pub(super) fn fsyncdir(&self, call: &mut Call<'_>) -> Result<usize> {
        let fsync: FsyncIn = call.body.take()?;
        let handle = Handle(fsync.fh);
        let scope = sync_scope(&fsync);
        self.operations
            .sync_directory(&call.request, call.node, handle, scope)?;
        Ok(0)
    }
}
