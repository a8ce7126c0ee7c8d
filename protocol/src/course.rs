//! Takes a trainer's settings, gives the range of every micro batch of a rank: steps whose size may change,
//! stretches of the stream that are left out, and an end.
//!
//! Two counts run beside each other. *Consumed* counts the samples of whole steps; a *position* names a
//! place of the stream. Where nothing is skipped they are equal; else a position is the samples consumed
//! plus the positions skipped before it. A stretch that is skipped begins where a step begins, so no step,
//! and no micro batch, ever spans one.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::position::{POSITION_END, Range, RangeError};
use crate::ranks::{LayoutError, Rank, RankLayout};

/// Stretches of positions that a trainer leaves out, sorted, none touching another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Skips(Vec<Range>);

/// So many stretches are written out; of more a hash stands for the rest, so that a report keeps within its bounds.
const WRITTEN_STRETCHES: usize = 16;

/// Why a course cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CourseError {
    /// Numbers that are no layout of ranks.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Positions that do not exist.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Two stretches share positions.
    #[error("skips {first} and {second} overlap")]
    Overlap {
        /// The earlier one.
        first: Range,
        /// The later one.
        second: Range,
    },
    /// A stretch begins within a step.
    #[error(
        "skip {skip} begins within the step at {start}-{end}; skips begin where a step begins: at {start} \
         or at {end}"
    )]
    WithinStep {
        /// The stretch.
        skip: Range,
        /// First position of the step.
        start: u64,
        /// One past its last.
        end: u64,
    },
    /// A step after steps that go on for ever, or after the end.
    #[error("the course has no place for another step")]
    Ended,
}

impl Skips {
    /// Stretches in any order; those that touch become one.
    ///
    /// # Errors
    /// Two that overlap.
    pub fn new(stretches: impl IntoIterator<Item = Range>) -> Result<Self, CourseError> {
        let mut sorted: Vec<Range> = stretches.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<Range> = Vec::with_capacity(sorted.len());
        for next in sorted {
            match merged.last_mut() {
                Some(last) if next.start() < last.end() => {
                    return Err(CourseError::Overlap { first: *last, second: next });
                }
                Some(last) if next.start() == last.end() => *last = Range::new(last.start(), next.end())?,
                _ => merged.push(next),
            }
        }
        Ok(Self(merged))
    }

    /// The stretches in order.
    pub fn stretches(&self) -> impl ExactSizeIterator<Item = Range> {
        self.0.iter().copied()
    }

    /// `start-end,start-end` in order, empty without any: alike for alike skips, however they were given. Of more than 16 stretches the first
    /// 16, then `,+N:HASH`: how many more, and the first 16 hexadecimal digits of SHA-256 over the whole text.
    #[must_use]
    pub fn written(&self) -> String {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        let Some((shown, rest)) =
            texts.split_at_checked(WRITTEN_STRETCHES).filter(|(_, rest)| !rest.is_empty())
        else {
            return texts.join(",");
        };
        let digest = Sha256::digest(texts.join(","));
        let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{},+{}:{hash}", shown.join(","), rest.len())
    }

    /// Where the sample stands before which `consumed` others were consumed.
    #[must_use]
    pub fn position(&self, consumed: u64) -> u64 {
        self.0
            .iter()
            .try_fold(consumed, |position, skip| {
                if skip.start() <= position { Ok(position.saturating_add(skip.len())) } else { Err(position) }
            })
            .unwrap_or_else(|position| position)
    }

    /// How many positions below `position` are not skipped.
    #[must_use]
    pub fn consumed(&self, position: u64) -> u64 {
        let skipped: u64 = self
            .0
            .iter()
            .take_while(|skip| skip.start() < position)
            .map(|skip| skip.end().min(position) - skip.start())
            .sum();
        position - skipped
    }

    /// The first stretch that begins after `position`.
    fn next_after(&self, position: u64) -> Option<Range> {
        let index = self.0.partition_point(|skip| skip.start() <= position);
        self.0.get(index).copied()
    }
}

/// What becomes of the step that crosses the trainer's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastStep {
    /// It is made; rows at or past the end are filler.
    #[default]
    Pad,
    /// It is not made.
    Drop,
}

/// Steps of one size that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    layout: RankLayout,
    /// Samples consumed before it.
    consumed: u64,
    /// Micro batches of a rank before it.
    batches: u64,
    /// None = they go on until the end.
    steps: Option<u64>,
}

/// Where a micro batch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its positions.
    pub range: Range,
    /// Samples consumed before its step.
    pub consumed: u64,
    /// The step's size and division.
    pub layout: RankLayout,
    /// Which of the rank's micro batches of the step it is, from 0.
    pub micro_batch: u64,
}

/// What a course says of a micro batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is there.
    Batch(Place),
    /// The trainer's end comes before it.
    End,
    /// The step's size is not known yet.
    Unknown,
}

/// All steps of one rank, from where it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    ranks: u64,
    micro_batch: u64,
    rank: u64,
    begin: u64,
    skips: Skips,
    stop: Option<u64>,
    last_step: LastStep,
    stretches: Vec<Stretch>,
    /// The step for which the end left no place.
    beyond: Option<RankLayout>,
}

impl Course {
    /// The course of `rank` of `ranks`, from `consumed` samples on, without end: see [`Course::until`]. It has no
    /// steps yet: see [`Course::go_on`] and [`Course::add_step`].
    ///
    /// # Errors
    /// A rank outside the ranks, zeros.
    pub fn new(ranks: u64, rank: u64, micro_batch: u64, consumed: u64) -> Result<Self, CourseError> {
        // The smallest step there is says whether the numbers make sense.
        RankLayout::new(ranks.saturating_mul(micro_batch), ranks, micro_batch)?.rank(rank)?;
        Ok(Self {
            ranks,
            micro_batch,
            rank,
            begin: consumed,
            skips: Skips::default(),
            stop: None,
            last_step: LastStep::Pad,
            stretches: Vec::new(),
            beyond: None,
        })
    }

    /// Leaves these stretches out.
    #[must_use]
    pub fn skipping(mut self, skips: Skips) -> Self {
        self.skips = skips;
        self
    }

    /// Ends at this position.
    #[must_use]
    pub fn until(mut self, stop: Option<u64>, last_step: LastStep) -> Self {
        self.stop = stop;
        self.last_step = last_step;
        self
    }

    /// Steps of this size from here to the end.
    ///
    /// # Errors
    /// A size that does not divide; a skip that begins within one of the steps; steps that go on already.
    pub fn go_on(&mut self, global_batch: u64) -> Result<(), CourseError> {
        let stretch = self.stretch(global_batch, None)?;
        // Between two skips all steps have one size: looking at each skip once is enough.
        let mut consumed = stretch.consumed;
        for skip in self.skips.stretches() {
            let here = self.skips.consumed(skip.start());
            if skip.start() < self.skips.position(consumed) || self.is_past_stop(skip.start()) {
                continue;
            }
            let within = (here - consumed) % global_batch;
            if within != 0 {
                let start = skip.start() - within;
                return Err(CourseError::WithinStep { skip, start, end: start + global_batch });
            }
            consumed = here;
        }
        self.stretches.push(stretch);
        Ok(())
    }

    /// One more step, of this size. False when the end has come and there is no such step.
    ///
    /// # Errors
    /// A size that does not divide; a skip that begins within the step; steps that go on already.
    pub fn add_step(&mut self, global_batch: u64) -> Result<bool, CourseError> {
        let stretch = self.stretch(global_batch, Some(1))?;
        if self.steps_to_end(&stretch) == Some(0) {
            self.beyond = Some(stretch.layout);
            return Ok(false);
        }
        let start = self.skips.position(stretch.consumed);
        let end = start.saturating_add(global_batch);
        if let Some(skip) = self.skips.next_after(start)
            && skip.start() < end
            && !self.is_past_stop(skip.start())
        {
            return Err(CourseError::WithinStep { skip, start, end });
        }
        match self.stretches.last_mut() {
            Some(Stretch { layout, steps: Some(steps), .. }) if *layout == stretch.layout => *steps += 1,
            _ => self.stretches.push(stretch),
        }
        Ok(true)
    }

    /// Samples consumed before the first step whose size is not known; None when all are known.
    #[must_use]
    pub fn known_until(&self) -> Option<u64> {
        let Some(last) = self.stretches.last() else { return Some(self.begin) };
        last.steps.map(|steps| last.consumed.saturating_add(steps.saturating_mul(last.layout.global_batch())))
    }

    /// Micro batches of the rank whose range is known; None when all are.
    #[must_use]
    pub fn known_batches(&self) -> Option<u64> {
        let Some(last) = self.stretches.last() else { return Some(0) };
        last.steps.map(|steps| {
            last.batches.saturating_add(steps.saturating_mul(last.layout.micro_batches_per_step()))
        })
    }

    /// The rank's micro batch with this number, counted from the course's begin.
    ///
    /// # Errors
    /// A range past the last position.
    pub fn batch(&self, number: u64) -> Result<Next, CourseError> {
        let index = self.stretches.partition_point(|stretch| stretch.batches <= number);
        let Some(stretch) = index.checked_sub(1).and_then(|index| self.stretches.get(index)) else {
            return Ok(if self.has_ended(self.begin) { Next::End } else { Next::Unknown });
        };
        let layout = stretch.layout;
        let per_step = layout.micro_batches_per_step();
        let within = number - stretch.batches;
        let (step, micro_batch) = (within / per_step, within % per_step);
        if self.steps_to_end(stretch).is_some_and(|steps| step >= steps) {
            return Ok(Next::End);
        }
        if stretch.steps.is_some_and(|steps| step >= steps) {
            let known = self.known_until().unwrap_or(u64::MAX);
            return Ok(if self.has_ended(known) { Next::End } else { Next::Unknown });
        }
        let consumed =
            step.saturating_mul(layout.global_batch()).saturating_add(stretch.consumed).min(POSITION_END);
        let rank: Rank = layout.rank(self.rank)?;
        let range = layout.micro_batch_at(self.skips.position(consumed), rank, micro_batch)?;
        Ok(Next::Batch(Place { range, consumed, layout, micro_batch }))
    }

    /// Samples consumed by whole steps when the rank has used so many micro batches.
    #[must_use]
    pub fn consumed_after(&self, batches: u64) -> u64 {
        let index = self.stretches.partition_point(|stretch| stretch.batches <= batches);
        let Some(stretch) = index.checked_sub(1).and_then(|index| self.stretches.get(index)) else {
            return self.begin;
        };
        let steps = (batches - stretch.batches) / stretch.layout.micro_batches_per_step();
        let steps = stretch.steps.map_or(steps, |most| steps.min(most));
        stretch.consumed.saturating_add(steps.saturating_mul(stretch.layout.global_batch()))
    }

    /// The first step's size and division, also where the end leaves no place for it; None where it is not known.
    #[must_use]
    pub fn first_layout(&self) -> Option<RankLayout> {
        self.stretches.first().map(|stretch| stretch.layout).or(self.beyond)
    }

    /// How many steps are left to the end when all have this size, from `consumed` on; None = no end.
    #[must_use]
    pub fn steps_left(&self, consumed: u64, global_batch: u64) -> Option<u64> {
        let left = self.end()?.saturating_sub(consumed);
        Some(match self.last_step {
            LastStep::Pad => left.div_ceil(global_batch.max(1)),
            LastStep::Drop => left / global_batch.max(1),
        })
    }

    /// The end as samples consumed.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.stop.map(|stop| self.skips.consumed(stop))
    }

    /// The position of the trainer's end.
    #[must_use]
    pub fn stop(&self) -> Option<u64> {
        self.stop
    }

    /// What becomes of the step that crosses it.
    #[must_use]
    pub fn last_step(&self) -> LastStep {
        self.last_step
    }

    /// The stretches that are left out.
    #[must_use]
    pub fn skips(&self) -> &Skips {
        &self.skips
    }

    fn stretch(&self, global_batch: u64, steps: Option<u64>) -> Result<Stretch, CourseError> {
        let layout = RankLayout::new(global_batch, self.ranks, self.micro_batch)?;
        let (Some(consumed), Some(batches)) = (self.known_until(), self.known_batches()) else {
            return Err(CourseError::Ended);
        };
        Ok(Stretch { layout, consumed, batches, steps })
    }

    fn steps_to_end(&self, stretch: &Stretch) -> Option<u64> {
        self.steps_left(stretch.consumed, stretch.layout.global_batch())
    }

    fn has_ended(&self, consumed: u64) -> bool {
        self.end().is_some_and(|end| consumed >= end)
    }

    fn is_past_stop(&self, position: u64) -> bool {
        self.stop.is_some_and(|stop| position >= stop)
    }
}

#[cfg(test)]
mod tests;
