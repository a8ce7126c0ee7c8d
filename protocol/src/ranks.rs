//! Which positions a data-parallel rank reads in a step: Megatron's own order.
//!
//! With global batch `G`, data-parallel size `D` and micro batch `m`, in the step that starts at
//! position `c` the `k`-th micro batch of rank `r` is `c + (k*D + r)*m .. + m`, for `k < G/(D*m)`.
//! Stream order is need order across ranks, and the world's size is no part of the data.

use crate::position::{POSITION_END, Range, RangeError};

/// `G`, `D` and `m`, checked to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankLayout {
    global_batch: u64,
    ranks: u64,
    micro_batch: u64,
}

/// Why three numbers are no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// One of them is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// `D * m` does not divide `G`.
    #[error(
        "global batch {global_batch} is not a multiple of {ranks} ranks x micro batch {micro_batch}; \
         the nearest that is: {}", if below == above { above.to_string() } else { format!("{below} or {above}") }
    )]
    DoesNotDivide {
        /// `G`.
        global_batch: u64,
        /// `D`.
        ranks: u64,
        /// `m`.
        micro_batch: u64,
        /// The multiple below, or the first one.
        below: u64,
        /// The multiple above.
        above: u64,
    },
    /// `D * m` overflows or is absurd.
    #[error("{ranks} ranks x micro batch {micro_batch} is more than there are positions")]
    TooLarge {
        /// `D`.
        ranks: u64,
        /// `m`.
        micro_batch: u64,
    },
    /// A rank outside `0 .. D`.
    #[error("rank {rank} is not below the data-parallel size {ranks}")]
    Rank {
        /// The rank.
        rank: u64,
        /// `D`.
        ranks: u64,
    },
}

impl RankLayout {
    /// Global batch `G`, data-parallel size `D`, micro batch `m`.
    ///
    /// # Errors
    /// Zeros, `G` not a multiple of `D * m`, overflow.
    pub fn new(global_batch: u64, ranks: u64, micro_batch: u64) -> Result<Self, LayoutError> {
        for (name, value) in [("global batch", global_batch), ("ranks", ranks), ("micro batch", micro_batch)]
        {
            if value == 0 {
                return Err(LayoutError::Zero(name));
            }
        }
        let wave = ranks
            .checked_mul(micro_batch)
            .filter(|wave| *wave <= POSITION_END && global_batch <= POSITION_END)
            .ok_or(LayoutError::TooLarge { ranks, micro_batch })?;
        if !global_batch.is_multiple_of(wave) {
            let below = global_batch / wave * wave;
            let above = below + wave;
            return Err(LayoutError::DoesNotDivide {
                global_batch,
                ranks,
                micro_batch,
                below: if below == 0 { above } else { below },
                above,
            });
        }
        Ok(Self { global_batch, ranks, micro_batch })
    }

    /// `G`: positions in one optimizer step.
    #[must_use]
    pub fn global_batch(self) -> u64 {
        self.global_batch
    }

    /// `D`: how many ranks share a step.
    #[must_use]
    pub fn ranks(self) -> u64 {
        self.ranks
    }

    /// `m`: positions in one range.
    #[must_use]
    pub fn micro_batch(self) -> u64 {
        self.micro_batch
    }

    /// How many micro batches each rank reads in a step: `G / (D*m)`.
    #[must_use]
    pub fn micro_batches_per_step(self) -> u64 {
        self.global_batch / (self.ranks * self.micro_batch)
    }

    /// The `k`-th micro batch of `rank` counted from the step that starts at `consumed`; `k` may run
    /// on into later steps, since steps of one layout follow each other without a gap.
    ///
    /// # Errors
    /// A range past the last position.
    pub fn micro_batch_at(self, consumed: u64, rank: Rank, k: u64) -> Result<Range, RangeError> {
        let start = k
            .checked_mul(self.ranks)
            .and_then(|waves| waves.checked_add(rank.0))
            .and_then(|number| number.checked_mul(self.micro_batch))
            .and_then(|offset| offset.checked_add(consumed))
            .unwrap_or(u64::MAX - self.micro_batch);
        Range::new(start, start.saturating_add(self.micro_batch))
    }

    /// A rank of this layout.
    ///
    /// # Errors
    /// A number at or above `D`.
    pub fn rank(self, rank: u64) -> Result<Rank, LayoutError> {
        if rank >= self.ranks {
            return Err(LayoutError::Rank { rank, ranks: self.ranks });
        }
        Ok(Rank(rank))
    }

    /// How many steps a trainer makes that stops after `end` positions and pads the last step.
    #[must_use]
    pub fn steps_until(self, consumed: u64, end: u64) -> u64 {
        end.saturating_sub(consumed).div_ceil(self.global_batch)
    }
}

/// A data-parallel rank, below the layout's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(u64);

impl Rank {
    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn positions_of_step(layout: RankLayout, consumed: u64) -> Vec<u64> {
        let mut positions = Vec::new();
        for rank in 0..layout.ranks() {
            for k in 0..layout.micro_batches_per_step() {
                let rank = layout.rank(rank).unwrap();
                positions.extend(layout.micro_batch_at(consumed, rank, k).unwrap().positions());
            }
        }
        positions
    }

    #[test]
    fn numbers_that_do_not_divide_name_their_neighbours() {
        let error = RankLayout::new(10, 4, 1).unwrap_err().to_string();
        assert!(error.contains("8 or 12"), "{error}");
        assert!(RankLayout::new(3, 4, 1).unwrap_err().to_string().ends_with("is: 4"));
        assert_eq!(RankLayout::new(4, 0, 1), Err(LayoutError::Zero("ranks")));
        assert!(matches!(RankLayout::new(8, u64::MAX, 2), Err(LayoutError::TooLarge { .. })));
        assert!(RankLayout::new(8, 4, 2).unwrap().rank(4).is_err());
    }

    #[test]
    fn the_last_position_is_reachable_and_none_beyond_it() {
        let layout = RankLayout::new(4, 2, 2).unwrap();
        let rank = layout.rank(1).unwrap();
        assert!(layout.micro_batch_at(POSITION_END - 4, rank, 0).is_ok());
        assert!(layout.micro_batch_at(POSITION_END - 4, rank, 1).is_err());
        assert!(layout.micro_batch_at(0, rank, u64::MAX).is_err());
    }

    proptest! {
        /// Every position exactly once, for any layout and across changes of it at step boundaries.
        #[test]
        fn every_position_once_across_layouts(
            start in 0u64..1_000_000_000_000,
            layouts in prop::collection::vec((1u64..5, 1u64..9, 1u64..6, 1u64..4), 1..5),
        ) {
            let mut consumed = start;
            let mut seen = Vec::new();
            for (micro_steps, ranks, micro_batch, steps) in layouts {
                let layout =
                    RankLayout::new(micro_steps * ranks * micro_batch, ranks, micro_batch).unwrap();
                for _ in 0..steps {
                    seen.extend(positions_of_step(layout, consumed));
                    consumed += layout.global_batch();
                }
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (start..consumed).collect::<Vec<_>>());
        }

        /// Later steps are what counting on gives, so a window may run ahead over step boundaries.
        #[test]
        fn counting_on_equals_the_next_step(
            micro_steps in 1u64..4, ranks in 1u64..6, micro_batch in 1u64..4, k in 0u64..40, rank in 0u64..6,
        ) {
            let layout = RankLayout::new(micro_steps * ranks * micro_batch, ranks, micro_batch).unwrap();
            let rank = layout.rank(rank % ranks).unwrap();
            let per_step = layout.micro_batches_per_step();
            let stepped = layout.micro_batch_at(k / per_step * layout.global_batch(), rank, k % per_step);
            prop_assert_eq!(layout.micro_batch_at(0, rank, k), stepped);
        }
    }
}
