//! The channel from the server to its client, for the message that the configuration has changed.
//!
//! The crate `vhost` (0.18) passes the channel as a proxy that has no such message, and keeps the
//! descriptor. So the message that brings the channel is peeked before the crate receives it.
//!
//! Format: "Back-end message types" of the vhost-user protocol.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;
/// Version 1 of the protocol, without a reply.
const FLAGS: u32 = 1;
const HEADER_BYTES: usize = 12;
/// A client that does not read its channel misses the message.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// A client's channel.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

impl Channel {
    /// The channel that the next message brings, if it is that message.
    pub(crate) fn peek(socket: &UnixStream) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        // Room for the one descriptor of this message.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut header)];
        let received = retry_on_intr(|| recvmsg(socket, &mut parts, &mut ancillary, flags)).ok()?;
        let code = u32::from_ne_bytes(header[..4].try_into().expect("four bytes"));
        let mut descriptors = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let descriptor = descriptors.next()?;
        let is_channel = received.bytes == HEADER_BYTES
            && code == SET_BACKEND_REQ_FD
            && socket_domain(&descriptor) == Ok(AddressFamily::UNIX)
            && socket_type(&descriptor) == Ok(SocketType::STREAM);
        is_channel.then(|| Self(descriptor.into()))
    }

    /// Asks the client to read the configuration again.
    pub(crate) fn send_config_change(&mut self) -> io::Result<()> {
        let mut message = [0; HEADER_BYTES];
        message[..4].copy_from_slice(&CONFIG_CHANGE.to_ne_bytes());
        message[4..8].copy_from_slice(&FLAGS.to_ne_bytes());
        self.0.set_write_timeout(Some(SEND_TIMEOUT))?;
        self.0.write_all(&message)
    }
}
