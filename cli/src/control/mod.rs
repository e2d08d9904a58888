//! Control of a running machine from other processes, over a Unix socket.
//!
//! `stile run` serves the socket ([`server`]); `stile ps` and `attach` connect to it ([`client`]). The sockets of all machines
//! are in one directory of the user's ([`directory`]). Messages are JSON, a line each ([`protocol`], [`sample`]).

pub mod client;
pub mod directory;
pub mod name;
pub mod protocol;
pub mod sample;
pub mod server;
pub mod source;
