//! Pools as a program uses them: on file systems people have, with jobs in this process.
//!
//! A process that dies is a job that is dropped before its end; real ones are killed in the tests
//! of the command.

mod both;
mod disk;
mod example;
mod give_way;
mod inside;
mod jobs;
mod qcow2;
mod rbd;
mod shared_directory;
mod space;
mod stand;
mod trouble;
mod turns;
mod volumes;
mod wipe;
