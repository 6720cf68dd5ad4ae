//! Operations on attributes and on the file system as a whole.

use super::{Call, Server, VALIDITY};
use crate::operations::Result;
use crate::protocol::attributes::{AttrOut, GetattrIn, SetattrIn, StatfsOut, StatxIn, StatxOut};

impl Server {
    pub(super) fn getattr(&self, call: &mut Call<'_>) -> Result<usize> {
        let getattr: GetattrIn = call.body.take()?;
        let operations = &self.operations;
        let attributes = operations.attributes(&call.request, call.node, getattr.handle())?;
        Ok(call.reply.put(&AttrOut::new(&attributes, VALIDITY)))
    }

    pub(super) fn statx(&self, call: &mut Call<'_>) -> Result<usize> {
        let statx: StatxIn = call.body.take()?;
        let operations = &self.operations;
        let attributes = operations.attributes(&call.request, call.node, statx.handle())?;
        Ok(call.reply.put(&StatxOut::new(&attributes, VALIDITY)))
    }

    pub(super) fn setattr(&self, call: &mut Call<'_>) -> Result<usize> {
        let setattr: SetattrIn = call.body.take()?;
        let change = setattr.change();
        let operations = &self.operations;
        let attributes = operations.set_attributes(&call.request, call.node, &change)?;
        Ok(call.reply.put(&AttrOut::new(&attributes, VALIDITY)))
    }

    pub(super) fn statfs(&self, call: &mut Call<'_>) -> Result<usize> {
        let statistics = self.operations.statistics(&call.request, call.node)?;
        Ok(call.reply.put(&StatfsOut::new(&statistics)))
    }

    pub(super) fn syncfs(&self, call: &mut Call<'_>) -> Result<usize> {
        self.operations.sync_all(&call.request)?;
        Ok(0)
    }
}
