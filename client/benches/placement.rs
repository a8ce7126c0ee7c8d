//! How near to its ideal a fleet comes that is asked as this client asks: a simulation, in simulated time, that
//! calls the client's own decisions (who is asked, how far ahead, when a second worker is, what is slow).
//!
//! `cargo bench -p feedmill-client --bench placement` prints a table and ends with one line of JSON. Arguments:
//! `-- quick` simulates fewer sizes; `-- W D` one size.
//!
//! Model: `D` ranks in step make a micro batch each, then wait for each other. Each of `W` workers fetches the samples
//! of a range (30 ms, lognormal, any number at once) and makes them on its cores in the order of need (50 ms each,
//! lognormal); the range is there 2 ms later. Ranks ask each worker once a second what it has ahead, so what they know
//! is up to a second old, and each rank knows something else. The trainer's own time is such that the fleet is used
//! to 90 %. Ideal is a step that takes the trainer's own time: nobody ever waits. Work is extra when a range was made
//! twice; samples that were begun and then not wanted count.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use feedmill_client::decisions::{
    Bounds, Budget, Choice, Known, Load, LoadStatus, ReadyTimes, Seen, Standing, Window, capacities, choose,
    due, point,
};
use feedmill_protocol::placement::asked_by;
use feedmill_protocol::position::Range;
use feedmill_protocol::report::WorkerState;
use tokio::time::Instant;

const MICRO_BATCH: u64 = 4;
const CORES: u32 = 4;
const SERVICE: f64 = 0.050;
const FETCH: f64 = 0.030;
const SPREAD: f64 = 0.5;
const TRANSFER: f64 = 0.002;
const POLL: f64 = 1.0;
const LOAD: f64 = 0.9;
const BATCH_BYTES: u64 = 1_000_000;
/// As the Python package has them.
const BOUNDS: Bounds = Bounds { ranges: 256, bytes: 1 << 30 };
/// Until ranks know speeds and windows have their size.
const WARM_UP: f64 = 20.0;
const MEASURED: f64 = 20.0;
/// And for so many batches of each rank at least.
const WAVES: u64 = 40;

/// Who is asked.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    /// As the client does.
    Ours,
    /// The same without second requests.
    NoHedge,
    /// Any worker, by a hash of the range.
    Hash,
    /// Striping by the range's number alone, in spite of different circles.
    OneCircle,
}

#[derive(Clone, Copy)]
struct Case {
    workers: usize,
    ranks: u64,
    /// So many workers of a hundred are five times slower.
    slow_percent: usize,
    load: f64,
}

struct Outcome {
    /// Of the ideal throughput.
    throughput: f64,
    /// Samples made in vain, of those used.
    extra: f64,
    /// Ranges asked twice, of all.
    hedged: f64,
    /// Outstanding and in hand, ranges.
    window: usize,
}

struct Worker {
    pace: f64,
    idle: u32,
    /// By need, then by age: copies with samples to begin.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    ahead: u64,
    served: u64,
}

/// One request for a range.
struct Copy {
    rank: usize,
    number: u64,
    worker: usize,
    asked: u64,
    to_begin: u64,
    to_finish: u64,
    begun: u64,
    cancelled: bool,
}

/// A range in a rank's window.
struct Outstanding {
    number: u64,
    needed_at: u64,
    copies: Vec<usize>,
    there: bool,
}

struct Rank {
    /// Indices of its workers, and how many ranks ask each.
    circle: Vec<(usize, u64)>,
    loads: Vec<Load>,
    capacities: Vec<u32>,
    resting: Vec<u64>,
    failures: Vec<u32>,
    window: VecDeque<Outstanding>,
    size: Window,
    next: u64,
    times: ReadyTimes,
    budget: Budget,
    pace: Option<f64>,
    handed_out: Option<u64>,
    waiting: bool,
    ranges: u64,
    hedged: u64,
}

enum Event {
    Runnable(usize),
    SampleMade(usize),
    There(usize),
    Computed,
    Poll(usize),
    Look(usize, u64),
}

struct Simulation {
    case: Case,
    policy: Policy,
    now: u64,
    base: Instant,
    random: fastrand::Rng,
    events: BinaryHeap<Reverse<(u64, usize)>>,
    kinds: Vec<Option<Event>>,
    free: Vec<usize>,
    workers: Vec<Worker>,
    ranks: Vec<Rank>,
    copies: Vec<Copy>,
    computing: usize,
    own_time: f64,
    waves: u64,
    used: u64,
    wasted: u64,
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl Simulation {
    fn new(case: Case, policy: Policy) -> Self {
        let slow = case.workers * case.slow_percent / 100;
        let workers = (0..case.workers)
            .map(|index| {
                // Slow ones lie anywhere in the order.
                let is_slow = slow > 0 && index % (case.workers / slow) == case.workers / slow / 2;
                let pace = if is_slow { 5.0 } else { 1.0 };
                Worker { pace, idle: CORES, queue: BinaryHeap::new(), ahead: 0, served: 0 }
            })
            .collect();
        let ranks = (0..case.ranks)
            .map(|rank| {
                let circle: Vec<(usize, u64)> = asked_by(rank, case.ranks, case.workers)
                    .iter()
                    .map(|asked| (asked.index, asked.ranks))
                    .collect();
                let size = circle.len();
                Rank {
                    circle,
                    loads: vec![Load::default(); size],
                    capacities: vec![8; size],
                    resting: vec![0; size],
                    failures: vec![0; size],
                    window: VecDeque::new(),
                    size: Window::adaptive(BOUNDS),
                    next: 0,
                    times: ReadyTimes::default(),
                    budget: Budget::default(),
                    pace: None,
                    handed_out: None,
                    waiting: false,
                    ranges: 0,
                    hedged: 0,
                }
            })
            .collect();
        let rate = case.load * case.workers as f64 * f64::from(CORES) / SERVICE;
        Self {
            case,
            policy,
            now: 0,
            base: Instant::now(),
            random: fastrand::Rng::with_seed(7),
            events: BinaryHeap::new(),
            kinds: Vec::new(),
            free: Vec::new(),
            workers,
            ranks,
            copies: Vec::new(),
            computing: 0,
            own_time: case.ranks as f64 * MICRO_BATCH as f64 / rate,
            waves: 0,
            used: 0,
            wasted: 0,
        }
    }

    fn instant(&self, at: u64) -> Instant {
        self.base + Duration::from_nanos(at)
    }

    fn at(&mut self, moment: u64, event: Event) {
        let index = self.free.pop().unwrap_or(self.kinds.len());
        if index == self.kinds.len() {
            self.kinds.push(None);
        }
        self.kinds[index] = Some(event);
        self.events.push(Reverse((moment.max(self.now), index)));
    }

    fn lognormal(&mut self, mean: f64) -> f64 {
        let (a, b) = (self.random.f64().max(1e-12), self.random.f64());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        mean * (SPREAD * normal - SPREAD * SPREAD / 2.0).exp()
    }

    fn run(mut self) -> Outcome {
        for rank in 0..self.ranks.len() {
            let begin = nanos(self.random.f64() * POLL);
            self.at(begin, Event::Poll(rank));
        }
        for rank in 0..self.ranks.len() {
            self.wants(rank);
        }
        let mut mark: Option<(u64, u64, u64, u64, u64, u64)> = None;
        while let Some(Reverse((moment, index))) = self.events.pop() {
            let waves = self.waves;
            self.now = moment;
            let event = self.kinds[index].take().expect("an event");
            self.free.push(index);
            self.happens(event);
            if self.waves == waves {
                continue;
            }
            // A step was made just now.
            match mark {
                None if moment >= nanos(WARM_UP) && waves >= WAVES => {
                    let (asked, hedged) = self.asked();
                    mark = Some((moment, self.waves, self.used, self.wasted, asked, hedged));
                }
                Some((began, waves, ..))
                    if moment >= began + nanos(MEASURED) && self.waves >= waves + WAVES =>
                {
                    break;
                }
                _ => {}
            }
        }
        let (began, waves, used, wasted, asked, hedged) = mark.expect("a warm fleet");
        let elapsed = (self.now - began) as f64 / 1e9;
        let own = self.own_time;
        let capacity = self.capacity();
        // A fleet that is too small even at its best is held against what it can do.
        let ideal = (1.0 / own).min(capacity / (self.case.ranks * MICRO_BATCH) as f64);
        let (asked_now, hedged_now) = self.asked();
        Outcome {
            throughput: (self.waves - waves) as f64 / elapsed / ideal,
            extra: (self.wasted - wasted) as f64 / (self.used - used).max(1) as f64,
            hedged: (hedged_now - hedged) as f64 / (asked_now - asked).max(1) as f64,
            window: self.ranks[0].window.len(),
        }
    }

    fn capacity(&self) -> f64 {
        self.workers.iter().map(|worker| f64::from(CORES) / SERVICE / worker.pace).sum()
    }

    fn asked(&self) -> (u64, u64) {
        self.ranks.iter().fold((0, 0), |(ranges, hedged), rank| (ranges + rank.ranges, hedged + rank.hedged))
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Runnable(copy) => {
                let Copy { worker, cancelled, .. } = self.copies[copy];
                if !cancelled {
                    let need = self.need_of(copy);
                    self.workers[worker].queue.push(Reverse((need, copy)));
                    self.begin_samples(worker);
                }
            }
            Event::SampleMade(copy) => self.sample_made(copy),
            Event::There(copy) => self.there(copy),
            Event::Computed => {
                self.computing -= 1;
                if self.computing == 0 && self.ranks.iter().all(|rank| !rank.waiting) {
                    self.waves += 1;
                    for rank in 0..self.ranks.len() {
                        self.wants(rank);
                    }
                }
            }
            Event::Poll(rank) => self.poll(rank),
            Event::Look(rank, number) => self.look(rank, number),
        }
    }

    fn need_of(&self, copy: usize) -> u64 {
        let Copy { rank, number, .. } = self.copies[copy];
        let outstanding = self.ranks[rank].window.iter().find(|range| range.number == number);
        outstanding.map_or(u64::MAX, |range| range.needed_at)
    }

    fn begin_samples(&mut self, worker: usize) {
        while self.workers[worker].idle > 0 {
            let Some(Reverse((_, copy))) = self.workers[worker].queue.peek().copied() else { return };
            if self.copies[copy].cancelled || self.copies[copy].to_begin == 0 {
                self.workers[worker].queue.pop();
                continue;
            }
            self.copies[copy].to_begin -= 1;
            self.copies[copy].begun += 1;
            self.workers[worker].idle -= 1;
            let time = self.lognormal(SERVICE) * self.workers[worker].pace;
            self.at(self.now + nanos(time), Event::SampleMade(copy));
        }
    }

    fn sample_made(&mut self, copy: usize) {
        let Copy { worker, cancelled, .. } = self.copies[copy];
        self.workers[worker].idle += 1;
        if !cancelled {
            self.copies[copy].to_finish -= 1;
            if self.copies[copy].to_finish == 0 {
                self.at(self.now + nanos(TRANSFER), Event::There(copy));
            }
        }
        self.begin_samples(worker);
    }

    fn there(&mut self, copy: usize) {
        let Copy { rank, number, worker, asked, cancelled, .. } = self.copies[copy];
        if cancelled {
            return;
        }
        self.workers[worker].served += MICRO_BATCH;
        self.workers[worker].ahead -= MICRO_BATCH;
        self.used += MICRO_BATCH;
        let now = self.now;
        let time = Duration::from_nanos(now - asked);
        let Some(place) = self.ranks[rank].window.iter().position(|range| range.number == number) else {
            return;
        };
        self.ranks[rank].times.add(time);
        self.ranks[rank].window[place].there = true;
        let copies = std::mem::take(&mut self.ranks[rank].window[place].copies);
        let slot = |state: &Rank, worker: usize| state.circle.iter().position(|(index, _)| *index == worker);
        if let Some(slot) = slot(&self.ranks[rank], worker) {
            self.ranks[rank].failures[slot] = 0;
        }
        for other in copies.into_iter().filter(|other| *other != copy) {
            self.cancel(other);
            // The first one lost: it rests as a worker does that failed, and what else is late there may be asked again.
            if self.copies[other].asked < asked {
                let loser = self.copies[other].worker;
                if let Some(slot) = slot(&self.ranks[rank], loser) {
                    let state = &mut self.ranks[rank];
                    state.failures[slot] += 1;
                    let pause = 0.05 * f64::from(1u32 << (state.failures[slot] - 1).min(6));
                    state.resting[slot] = now + nanos(pause.min(2.0) * (0.5 + self.random.f64() / 2.0));
                }
                let late: Vec<u64> = self.ranks[rank]
                    .window
                    .iter()
                    .filter(|range| range.copies.len() == 1 && self.copies[range.copies[0]].worker == loser)
                    .map(|range| range.number)
                    .collect();
                for number in late {
                    self.ask_second(rank, number);
                }
            }
        }
        if place == 0 && self.ranks[rank].waiting {
            self.takes(rank, true);
        }
    }

    fn cancel(&mut self, copy: usize) {
        let state = &mut self.copies[copy];
        if !state.cancelled {
            state.cancelled = true;
            self.wasted += state.begun;
            let worker = state.worker;
            self.workers[worker].ahead -= MICRO_BATCH;
        }
    }

    /// The rank is done with its batch and with waiting for the others.
    fn wants(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if let Some(handed_out) = state.handed_out.take() {
            let own = (self.now - handed_out) as f64 / 1e9;
            state.pace = Some(state.pace.map_or(own, |pace| pace * 0.8 + own * 0.2));
        }
        state.waiting = true;
        self.fill(rank);
        let first = &self.ranks[rank].window[0];
        if first.there {
            self.takes(rank, false);
        } else {
            let number = first.number;
            self.at(self.now, Event::Look(rank, number));
        }
    }

    fn takes(&mut self, rank: usize, waited: bool) {
        let known = self.known(rank);
        let state = &mut self.ranks[rank];
        state.waiting = false;
        state.handed_out = Some(self.now);
        state.window.pop_front();
        state.size.took(waited, &known);
        self.computing += 1;
        self.at(self.now + nanos(self.own_time), Event::Computed);
        self.fill(rank);
    }

    fn known(&self, rank: usize) -> Known {
        let state = &self.ranks[rank];
        let cores: Vec<u64> = state.loads.iter().filter_map(Load::cores).map(u64::from).collect();
        let count = cores.len() as u64;
        Known {
            cores: (count > 0).then(|| cores.iter().sum::<u64>() * self.case.workers as u64 / count.max(1)),
            ranks: self.case.ranks,
            micro_batch: MICRO_BATCH,
            pace: state.pace.map(Duration::from_secs_f64),
            ready_time: state.times.median(),
            batch_bytes: state.times.median().map(|_| BATCH_BYTES),
        }
    }

    fn fill(&mut self, rank: usize) {
        let size = self.ranks[rank].size.ranges(&self.known(rank)).max(1);
        while self.ranks[rank].window.len() < size {
            let (number, ahead) = (self.ranks[rank].next, self.ranks[rank].window.len());
            self.ranks[rank].next += 1;
            self.ranks[rank].ranges += 1;
            self.ranks[rank].budget.asked();
            let need = self.ranks[rank].pace.unwrap_or(0.1) * ahead as f64;
            let needed_at = self.now + nanos(need);
            let range = Outstanding { number, needed_at, copies: Vec::new(), there: false };
            self.ranks[rank].window.push_back(range);
            if let Some(slot) = self.choose(rank, number, None) {
                self.ask(rank, number, slot);
            }
            self.at(needed_at, Event::Look(rank, number));
        }
    }

    /// Which of the rank's workers; never the one that is asked already.
    fn choose(&mut self, rank: usize, number: u64, but: Option<usize>) -> Option<usize> {
        let state = &self.ranks[rank];
        if self.policy == Policy::Hash {
            let hash = (number * self.case.ranks + rank as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            let hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            return Some(((u128::from(hash) * state.circle.len() as u128) >> 64) as usize);
        }
        let now = self.instant(self.now);
        let seen: Vec<Seen> = state
            .circle
            .iter()
            .enumerate()
            .map(|(slot, (worker, ranks))| Seen {
                standing: match () {
                    () if but == Some(*worker) => Standing::Tried,
                    () if state.resting[slot] > self.now => {
                        Standing::Resting(self.instant(state.resting[slot]))
                    }
                    () => Standing::Ready,
                },
                capacity: state.capacities[slot],
                work_ahead: state.loads[slot].work_ahead(now),
                ranks: *ranks,
            })
            .collect();
        let g = number * self.case.ranks + rank as u64;
        let range = Range::new(g * MICRO_BATCH, (g + 1) * MICRO_BATCH).expect("a range");
        let ranks = if self.policy == Policy::OneCircle { 1 } else { self.case.ranks };
        match choose(point(range, ranks, self.case.workers), MICRO_BATCH, &seen, now) {
            Choice::Ask(slot) => Some(slot),
            // All rest; the client waits some milliseconds, here the first one is asked.
            _ if but.is_none() => Some(0),
            _ => None,
        }
    }

    fn ask(&mut self, rank: usize, number: u64, slot: usize) {
        let worker = self.ranks[rank].circle[slot].0;
        self.ranks[rank].loads[slot].asked(MICRO_BATCH);
        self.workers[worker].ahead += MICRO_BATCH;
        let copy = self.copies.len();
        self.copies.push(Copy {
            rank,
            number,
            worker,
            asked: self.now,
            to_begin: MICRO_BATCH,
            to_finish: MICRO_BATCH,
            begun: 0,
            cancelled: false,
        });
        if let Some(range) = self.ranks[rank].window.iter_mut().find(|range| range.number == number) {
            range.copies.push(copy);
        }
        // The slowest of the samples' objects.
        let fetched = (0..MICRO_BATCH).map(|_| self.lognormal(FETCH)).fold(0.0, f64::max);
        self.at(self.now + nanos(fetched), Event::Runnable(copy));
    }

    /// Is it time for a second worker?
    fn look(&mut self, rank: usize, number: u64) {
        if matches!(self.policy, Policy::NoHedge | Policy::Hash) {
            return;
        }
        let state = &self.ranks[rank];
        let Some(place) = state.window.iter().position(|range| range.number == number) else { return };
        let range = &state.window[place];
        if range.there || range.copies.len() != 1 {
            return;
        }
        let waited_for = place == 0 && state.waiting;
        let sent = self.instant(self.copies[range.copies[0]].asked);
        let at = due(sent, self.instant(range.needed_at), waited_for, state.times.median());
        let now = self.instant(self.now);
        let Some(at) = at else { return };
        if at > now {
            let at = self.now + (at - now).as_nanos() as u64;
            self.at(at, Event::Look(rank, number));
        } else if !self.ask_second(rank, number) {
            self.at(self.now + nanos(0.1), Event::Look(rank, number));
        }
    }

    fn ask_second(&mut self, rank: usize, number: u64) -> bool {
        if matches!(self.policy, Policy::NoHedge | Policy::Hash) {
            return true;
        }
        let first =
            self.ranks[rank].window.iter().find(|range| range.number == number).map(|range| range.copies[0]);
        let Some(first) = first else { return true };
        let but = self.copies[first].worker;
        let Some(slot) = self.choose(rank, number, Some(but)) else { return false };
        if !self.ranks[rank].budget.take() {
            return false;
        }
        self.ranks[rank].hedged += 1;
        self.ask(rank, number, slot);
        true
    }

    fn poll(&mut self, rank: usize) {
        let now = self.instant(self.now);
        for slot in 0..self.ranks[rank].circle.len() {
            let worker = &self.workers[self.ranks[rank].circle[slot].0];
            let status = LoadStatus {
                worker: String::new(),
                state: WorkerState::Ready,
                cores: CORES,
                work_ahead: worker.ahead,
                samples: worker.served,
            };
            self.ranks[rank].loads[slot].read(now, status);
        }
        let known = capacities(self.ranks[rank].loads.iter());
        self.ranks[rank].capacities = known;
        let again = nanos(POLL * (0.9 + self.random.f64() / 5.0));
        self.at(self.now + again, Event::Poll(rank));
    }
}

fn simulate(case: Case, policy: Policy) -> Outcome {
    Simulation::new(case, policy).run()
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let quick = arguments.iter().any(|argument| argument == "quick");
    let numbers: Vec<u64> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    let (workers, ranks): (Vec<usize>, Vec<u64>) = match numbers[..] {
        [workers, ranks] => (vec![workers as usize], vec![ranks]),
        _ if quick => (vec![16, 64, 256], vec![13, 64, 144]),
        _ => (vec![16, 32, 64, 128, 256], vec![2, 8, 13, 32, 55, 64, 89, 128, 144, 256, 512]),
    };
    println!(
        "throughput in % of the ideal at 90 % load | extra work in %; even fleet, then 5 % of workers 5 x slower"
    );
    println!("  W    D   window | ours        | no hedge  hash  one circle || ours        | no hedge");
    let mut worst = [(f64::MAX, 0, 0); 2];
    let mut most_extra: f64 = 0.0;
    let mut most_hedged: f64 = 0.0;
    let mut others = [(0.0, 0u32); 4];
    for &workers in &workers {
        for &ranks in &ranks {
            let case = |slow_percent| Case { workers, ranks, slow_percent, load: LOAD };
            // Of 16 workers, one is slow.
            let slow = 5usize.max(100usize.div_ceil(workers));
            let (even, uneven) = (simulate(case(0), Policy::Ours), simulate(case(slow), Policy::Ours));
            let compared = [
                simulate(case(0), Policy::NoHedge),
                simulate(case(0), Policy::Hash),
                simulate(case(0), Policy::OneCircle),
                simulate(case(slow), Policy::NoHedge),
            ];
            for (worst, outcome) in worst.iter_mut().zip([&even, &uneven]) {
                if outcome.throughput < worst.0 {
                    *worst = (outcome.throughput, workers, ranks);
                }
                most_extra = most_extra.max(outcome.extra);
                most_hedged = most_hedged.max(outcome.hedged);
            }
            for (sum, outcome) in others.iter_mut().zip(&compared) {
                *sum = (sum.0 + outcome.throughput, sum.1 + 1);
            }
            let percent = |outcome: &Outcome| outcome.throughput * 100.0;
            println!(
                "{workers:>3} {ranks:>4} {:>8} | {:>5.1} {:>5.2} | {:>8.1} {:>5.1} {:>11.1} || {:>5.1} {:>5.2} | {:>8.1}",
                even.window,
                percent(&even),
                even.extra * 100.0,
                percent(&compared[0]),
                percent(&compared[1]),
                percent(&compared[2]),
                percent(&uneven),
                uneven.extra * 100.0,
                percent(&compared[3]),
            );
        }
    }
    let mean = |index: usize| others[index].0 / f64::from(others[index].1.max(1));
    println!(
        "{{\"bench\":\"placement\",\"even_worst\":{:.3},\"even_worst_at\":[{},{}],\"slow_worst\":{:.3},\"slow_worst_at\":[{},{}],\
         \"extra_most\":{:.4},\"hedged_most\":{:.4},\"mean_no_hedge\":{:.3},\"mean_hash\":{:.3},\"mean_one_circle\":{:.3},\
         \"mean_slow_no_hedge\":{:.3}}}",
        worst[0].0,
        worst[0].1,
        worst[0].2,
        worst[1].0,
        worst[1].1,
        worst[1].2,
        most_extra,
        most_hedged,
        mean(0),
        mean(1),
        mean(2),
        mean(3),
    );
}
