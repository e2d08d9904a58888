//! The library behind the command `stile`: builds an image, runs it, watches and controls it.

// These macros panic if the reader has closed the pipe or the disk is full: module `out` writes instead.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod args;
pub mod attach;
pub mod budget;
pub mod build;
pub mod cache;
pub mod cargo;
pub mod check;
pub mod child;
mod cleanup;
mod complete;
pub mod config;
pub mod connect;
pub mod control;
pub mod create;
pub mod debian;
pub mod detach;
pub mod disk;
pub mod doctor;
pub mod emulator;
pub mod exit;
pub mod fetch;
pub mod fuzz;
pub mod generate;
pub mod guest;
pub mod hints;
pub mod hypervisor;
pub mod image;
pub mod initramfs;
pub mod l2;
pub mod machine;
pub mod metrics;
pub mod migrate;
pub mod operate;
pub mod out;
pub mod programs;
pub mod progress;
pub mod ps;
mod replaced;
pub mod report;
pub mod restore;
pub mod run;
pub mod save;
pub mod scratch;
pub mod secure_boot;
pub mod serial;
pub mod session;
pub mod snapshot;
pub mod soak;
pub mod stick;
pub mod top;
pub mod trace;
pub mod vm_files;
