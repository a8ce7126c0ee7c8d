use super::*;
use proptest::prelude::*;

fn range(start: u64, end: u64) -> Range {
    Range::new(start, end).unwrap()
}

fn skips(stretches: &[(u64, u64)]) -> Skips {
    Skips::new(stretches.iter().map(|(start, end)| range(*start, *end))).unwrap()
}

/// Every range of a course, until it ends or is not known.
fn ranges(course: &Course, most: u64) -> (Vec<Range>, Option<Next>) {
    let mut all = Vec::new();
    for number in 0..most {
        match course.batch(number).unwrap() {
            Next::Batch(place) => all.push(place.range),
            other => return (all, Some(other)),
        }
    }
    (all, None)
}

#[test]
fn consumed_and_positions_are_each_others_inverse_round_skips() {
    let skips = skips(&[(30, 40), (10, 20)]);
    let cases = [(0, 0), (9, 9), (10, 20), (19, 29), (20, 40), (25, 45)];
    for (consumed, position) in cases {
        assert_eq!(skips.position(consumed), position);
        assert_eq!(skips.consumed(position), consumed);
    }
    assert_eq!(skips.consumed(15), 10, "within a skip");
    assert!(Skips::new([range(0, 5), range(4, 6)]).is_err());
    let touching = Skips::new([range(5, 6), range(0, 5)]).unwrap();
    assert_eq!(touching.stretches().collect::<Vec<_>>(), [range(0, 6)]);
}

#[test]
fn a_skip_is_jumped_where_a_step_begins() {
    let mut course =
        Course::new(1, 0, 2, 0).unwrap().skipping(skips(&[(4, 14)])).until(Some(20), LastStep::Pad);
    course.go_on(4).unwrap();
    let (all, end) = ranges(&course, 99);
    assert_eq!(all, [range(0, 2), range(2, 4), range(14, 16), range(16, 18), range(18, 20), range(20, 22)]);
    assert_eq!(end, Some(Next::End));
    assert_eq!((course.consumed_after(3), course.consumed_after(4)), (4, 8));
}

#[test]
fn a_skip_within_a_step_is_refused_with_the_boundaries() {
    let course = || Course::new(2, 0, 1, 8).unwrap().skipping(skips(&[(18, 30)]));
    let error = course().go_on(4).unwrap_err();
    let expected = CourseError::WithinStep { skip: range(18, 30), start: 16, end: 20 };
    assert_eq!(error, expected);
    let mut stepwise = course();
    assert_eq!(stepwise.add_step(8), Ok(true));
    assert_eq!(stepwise.add_step(4).unwrap_err(), expected);
    assert_eq!(stepwise.add_step(2), Ok(true));
    // Past the trainer's end nothing is read, so nothing is skipped either.
    course().until(Some(17), LastStep::Pad).go_on(4).unwrap();
}

#[test]
fn the_last_step_is_padded_or_dropped() {
    for (last_step, batches) in [(LastStep::Pad, 6), (LastStep::Drop, 4)] {
        let mut open = Course::new(1, 0, 2, 0).unwrap().until(Some(9), last_step);
        let mut stepwise = open.clone();
        open.go_on(4).unwrap();
        assert_eq!(ranges(&open, 99), (ranges(&open, batches).0, Some(Next::End)));
        assert_eq!(ranges(&open, 99).0.len() as u64, batches);
        while stepwise.add_step(4).unwrap() {}
        assert_eq!(ranges(&stepwise, 99), ranges(&open, 99));
    }
}

#[test]
fn a_course_says_what_it_does_not_know() {
    let mut course = Course::new(1, 0, 2, 0).unwrap();
    assert_eq!(course.batch(0), Ok(Next::Unknown));
    assert_eq!(course.add_step(4), Ok(true));
    assert_eq!((course.known_until(), course.known_batches()), (Some(4), Some(2)));
    assert_eq!(course.batch(2), Ok(Next::Unknown));
    course.go_on(2).unwrap();
    assert!(matches!(course.batch(2), Ok(Next::Batch(Place { consumed: 4, micro_batch: 0, .. }))));
    assert_eq!(course.add_step(2), Err(CourseError::Ended));
    assert_eq!(course.known_batches(), None);
    assert!(course.batch(u64::MAX).is_err(), "past the last position");
    assert!(Course::new(2, 2, 1, 0).is_err());
    assert!(Course::new(2, 0, 0, 0).is_err());
}

#[test]
fn skips_are_written_alike_however_they_were_given_and_never_long() {
    let written = |stretches: &[(u64, u64)]| {
        Skips::new(stretches.iter().map(|(start, end)| range(*start, *end))).unwrap().written()
    };
    assert_eq!(written(&[]), "");
    assert_eq!(written(&[(32, 40), (8, 12), (12, 16)]), "8-16,32-40");
    let many: Vec<_> = (0..1000).map(|number| (number * 10, number * 10 + 5)).collect();
    assert_eq!(written(&many[..16]).matches('-').count(), 16);
    let mut other = many.clone();
    other[999].1 += 1;
    let (many, other) = (written(&many), written(&other));
    assert!(many.starts_with("0-5,10-15,") && many.contains(",150-155,+984:"), "{many}");
    assert!(many != other && many.len() == other.len() && many.len() < 200, "{other}");
}

#[test]
fn nothing_is_read_when_the_end_has_passed() {
    let mut course = Course::new(1, 0, 1, 8).unwrap().until(Some(8), LastStep::Pad);
    assert_eq!(course.batch(0), Ok(Next::End));
    assert_eq!(course.first_layout(), None);
    assert_eq!(course.add_step(1), Ok(false));
    assert_eq!(course.first_layout().map(RankLayout::global_batch), Some(1));
    course.go_on(1).unwrap();
    assert_eq!(course.batch(0), Ok(Next::End));
}

proptest! {
    /// Over all ranks, ramps and skips: every position that is not skipped exactly once and in order of
    /// steps, and no micro batch touches a skip.
    #[test]
    fn every_position_once_across_ramps_and_skips(
        ranks in 1u64..4,
        micro_batch in 1u64..4,
        begin_steps in 0u64..5,
        // (micro batches a rank makes in the step, positions skipped after it)
        steps in prop::collection::vec((1u64..4, prop_oneof![3 => Just(0u64), 1 => 1u64..30]), 1..12),
    ) {
        let wave = ranks * micro_batch;
        let begin = begin_steps * wave;
        let mut stretches = Vec::new();
        let mut position = begin;
        for (k, skipped) in &steps {
            position += k * wave;
            if *skipped > 0 {
                stretches.push(range(position, position + skipped));
                position += skipped;
            }
        }
        let skips = Skips::new(stretches).unwrap();
        let mut seen = Vec::new();
        for rank in 0..ranks {
            let mut course = Course::new(ranks, rank, micro_batch, begin).unwrap().skipping(skips.clone());
            for (k, _) in &steps {
                prop_assert_eq!(course.add_step(k * wave), Ok(true));
            }
            let mut consumed = begin;
            let (all, end) = ranges(&course, u64::MAX);
            prop_assert_eq!(end, Some(Next::Unknown));
            let mut number = 0;
            for (k, _) in &steps {
                prop_assert_eq!(course.consumed_after(number), consumed);
                prop_assert_eq!(course.consumed_after(number + k - 1), consumed, "a step that is not whole");
                number += k;
                consumed += k * wave;
            }
            prop_assert_eq!(course.consumed_after(number), consumed);
            seen.extend(all.into_iter().flat_map(|range| range.positions().collect::<Vec<_>>()));
        }
        seen.sort_unstable();
        let expected: Vec<u64> = (begin..position)
            .filter(|p| !skips.stretches().any(|skip| (skip.start()..skip.end()).contains(p)))
            .collect();
        prop_assert_eq!(seen, expected);
    }

    /// A course from the middle is the rest of the course from the begin, whatever the division then is.
    #[test]
    fn resuming_gives_the_rest(
        global_batch_waves in 1u64..4, skip_after in 0u64..6, skip_length in 1u64..40, resumed in 0u64..10,
    ) {
        let global_batch = global_batch_waves * 12;
        let start = skip_after * global_batch;
        let skips = Skips::new([range(start, start + skip_length)]).unwrap();
        let positions = |ranks: u64, micro_batch: u64, consumed: u64| {
            let mut all = Vec::new();
            for rank in 0..ranks {
                let mut course = Course::new(ranks, rank, micro_batch, consumed).unwrap()
                    .skipping(skips.clone())
                    .until(Some(start + skip_length + 5 * global_batch), LastStep::Drop);
                course.go_on(global_batch).unwrap();
                all.extend(ranges(&course, u64::MAX).0.into_iter().flat_map(|r| r.positions().collect::<Vec<_>>()));
            }
            all.sort_unstable();
            all
        };
        let consumed = resumed * global_batch;
        let whole = positions(2, 3, 0);
        let rest: Vec<u64> = whole.iter().copied().filter(|p| *p >= skips.position(consumed)).collect();
        prop_assert_eq!(positions(4, 1, consumed), rest);
    }
}
