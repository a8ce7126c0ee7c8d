//! Shared memory for finished samples, and the byte budgets that admit work to it.
//!
//! ```text
//!  Urgency (when it is needed, may change) ──┐
//!                                            ▼
//!  Budget::acquire ─► Permit          Arena::reserve ─► Reservation  (Empty, can be revoked)
//!  (fetched bytes, decode memory)                           │ begin_fill
//!                                                           ▼
//!                                                      RegionWriter  (Filling)
//!                                                           │ finish
//!                                                           ▼
//!                                                        Region      (Ready, can be evicted)
//!                                                           │ lease
//!                                                           ▼
//!                                                      RegionLease   (Leased, readable, fixed)
//! ```
//!
//! Every queue is served strictly in the order of need: the most urgent waiter first, and nobody
//! overtakes it, however small. So that the most urgent work always gets through, three rules
//! hold for callers:
//!
//! 1. A [`RegionWriter`] waits for nothing: acquire the decode memory before
//!    [`Reservation::begin_fill`].
//! 2. Lease the regions of a batch only when all of them are ready; give each range its own
//!    [`Urgency`], shared by its samples.
//! 3. Hold one permit of a budget at a time, or flag the range as head ([`Urgency::set_head`]).
//!
//! [`Slabs`] hold whole batches in files of one size each, which other processes map once for reading
//! ([`MappedSlab`]); [`handover`] passes their descriptors.
//!
//! No runtime is needed: the futures here work under any executor.
#![allow(unsafe_code)]

/// The arena: reservations in, statistics out.
mod arena;
/// A budget of bytes, granted in the order of need.
mod budget;
/// The memory limit of the cgroup, and whether the budgets fit in it.
mod cgroup;
/// Which pages of the address space are used, resident or returned. Pure.
mod extent;
/// Handing bytes and a descriptor to another process over a Unix socket.
pub mod handover;
/// The arena as a child process sees it.
mod inherited;
/// Reading a region for as long as a lease lives.
mod lease;
/// Until when a reader may hold what it leased. Pure.
mod lease_book;
/// Who holds what: the states of all regions, eviction and revocation. Pure.
mod ledger;
/// A slab of another process, mapped for reading.
mod mapped;
/// The memfd and its mapping.
mod memory;
/// Waiters grouped by their urgency; the front is the most urgent.
mod need_queue;
/// A region on its way from reserved to ready.
mod region;
/// Which places in slabs are taken, idle or free. Pure.
mod slab_ledger;
/// A batch in a slab on its way from reserved to read.
mod slab_region;
/// Whole batches in slabs that other processes map.
mod slabs;
/// How soon something is needed: one shared cell per range.
mod urgency;

pub use arena::{Arena, ArenaError, ArenaSettings, ArenaStats, Reserve};
pub use budget::{Acquire, Budget, BudgetError, BudgetStats, Permit};
pub use cgroup::{CgroupError, Demand, MemoryLimit, check_against_cgroup, check_against_limit, memory_limit};
pub use inherited::InheritedArena;
pub use lease::{ChunkLease, RegionLease};
pub use lease_book::{LeaseBook, LeaseId};
pub use mapped::{MappedRegion, MappedSlab};
pub use region::{
    JoinError, Region, RegionPart, RegionWriter, Reservation, Revocation, Revoked, SplitWriter,
};
pub use slab_region::{SlabLease, SlabRegion, SlabWriter};
pub use slabs::{SlabError, SlabReserve, SlabSettings, SlabStats, Slabs};
pub use urgency::Urgency;
