//! The targets, one in each file.

pub(crate) mod definition;
pub(crate) mod ext4;
pub(crate) mod fast_commit;
pub(crate) mod fuse;
pub(crate) mod job_record;
pub(crate) mod journal;
pub(crate) mod nbd_client;
pub(crate) mod nbd_server;
pub(crate) mod nodes;
pub(crate) mod partition_table;
pub(crate) mod qcow2;
pub(crate) mod vhost;
pub(crate) mod xml;
