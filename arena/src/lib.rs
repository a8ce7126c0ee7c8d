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
/// The arena as a child process sees it.
mod inherited;
/// Reading a region for as long as a lease lives.
mod lease;
/// Until when a reader may hold what it leased. Pure.
mod lease_book;
/// Who holds what: the states of all regions, eviction and revocation. Pure.
mod ledger;
/// The memfd and its mapping.
mod memory;
/// Waiters grouped by their urgency; the front is the most urgent.
mod need_queue;
/// A region on its way from reserved to ready.
mod region;
/// How soon something is needed: one shared cell per range.
mod urgency;

pub use arena::{Arena, ArenaError, ArenaSettings, ArenaStats, Reserve};
pub use budget::{Acquire, Budget, BudgetError, BudgetStats, Permit};
pub use cgroup::{
    CgroupError, Demand, MemoryLimit, OVERHEAD_BYTES, check_against_cgroup, check_against_limit, memory_limit,
};
pub use inherited::InheritedArena;
pub use lease::{ChunkLease, RegionLease};
pub use lease_book::{LeaseBook, LeaseId};
pub use region::{
    JoinError, Region, RegionPart, RegionWriter, Reservation, Revocation, Revoked, SplitWriter,
};
pub use urgency::Urgency;
