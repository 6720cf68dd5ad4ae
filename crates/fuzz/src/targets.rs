//! The targets, one in each file.

pub(crate) mod ext4;
pub(crate) mod nbd_client;
pub(crate) mod nbd_server;
pub(crate) mod qcow2;
