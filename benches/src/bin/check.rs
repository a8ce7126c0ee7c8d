//! How fast `feedmill check` goes through text on one core, beside what it cannot leave out: reading the lines, parsing
//! them, rendering and tokenizing them, and beside a parser that keeps nothing and the tokenizer library alone, which
//! nothing that counts tokens can beat; in turns, for records of two lengths. CPU time of the process, so that a busy
//! machine disturbs ratios little. And how fast it reads the headers of pictures from an S3 server, beside the same GETs
//! and nothing else.

use std::hint::black_box;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use clap::Parser;
use feedmill_benches::dataset::{BUCKET, Dataset, PipelineText};
use feedmill_benches::figures::{load, median, now, print_line, rounded};
use feedmill_benches::{photos, roles};
use feedmill_source::{CredentialsSource, FetchSettings, ObjectUri, S3Settings, Stores};
use feedmill_text::processor::{
    BuiltinTemplate, Prepared, ProcessorFiles, TemplateChoice, TextProcessor, TextSettings,
};
use feedmill_text::record::{RecordRules, RecordShape, parse_record};
use feedmill_worker::check::{Check, CheckOptions, Pictures, Selection};
use feedmill_worker::in_process::Options;
use feedmill_worker::settings::read_pipeline;
use futures_util::StreamExt as _;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

/// As in the programs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Text of records through `check`, per core.
#[derive(Parser)]
struct Arguments {
    /// Records of the manifest
    #[arg(long, default_value_t = 40_000)]
    records: u64,
    /// Sentences of an answer; two answers a record
    #[arg(long, default_value_t = 6)]
    sentences: usize,
    /// Sentences of an answer in the longer records, which are a third as many
    #[arg(long, default_value_t = 20)]
    long_sentences: usize,
    /// Different words in the text, about
    #[arg(long, default_value_t = 20_000)]
    words: usize,
    /// Different pictures
    #[arg(long, default_value_t = 2000)]
    pictures: usize,
    /// Requests in flight
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The built-in chat template instead of the checkpoint's own
    #[arg(long)]
    builtin_template: bool,
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// CPU seconds of `work`.
fn spent<T>(work: impl FnOnce() -> T) -> f64 {
    let begun = cpu();
    black_box(work());
    cpu() - begun
}

/// Made-up words of the lengths that words have, the first ones far more frequent than the last.
struct Prose {
    random: fastrand::Rng,
    words: Vec<String>,
}

impl Prose {
    fn new(words: usize) -> Self {
        const SYLLABLES: [&str; 24] = [
            "the", "an", "re", "st", "ing", "er", "con", "pic", "ture", "shad", "ow", "lamp", "gre", "en",
            "tab", "le", "side", "wa", "ter", "s", "light", "over", "un", "der",
        ];
        let mut random = fastrand::Rng::with_seed(1);
        let words = (0..words.max(1))
            .map(|_| (0..random.usize(1..4)).map(|_| SYLLABLES[random.usize(..SYLLABLES.len())]).collect())
            .collect();
        Self { random, words }
    }

    fn sentence(&mut self) -> String {
        let count = self.random.usize(6..20);
        let words: Vec<&str> = (0..count)
            .map(|_| {
                // Zipf's law, about: the rank is uniform on a logarithmic scale.
                let rank = (self.words.len() as f64).powf(self.random.f64()) as usize;
                self.words[rank.min(self.words.len() - 1)].as_str()
            })
            .collect();
        words.join(" ") + "."
    }

    fn text(&mut self, sentences: usize) -> String {
        (0..sentences).map(|_| self.sentence()).collect::<Vec<_>>().join(" ")
    }
}

fn write(path: &Path, words: usize, records: u64, sentences: usize) -> anyhow::Result<()> {
    let mut prose = Prose::new(words);
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for number in 0..records {
        let record = json!({
            "id": format!("text-{number:08}"),
            "image": format!("{number:08}.jpg"),
            "conversations": [
                {"from": "human", "value": format!("<image>\n{}", prose.text(1))},
                {"from": "gpt", "value": prose.text(sentences)},
                {"from": "human", "value": prose.text(1)},
                {"from": "gpt", "value": prose.text(sentences)},
            ],
        });
        writeln!(file, "{record}")?;
    }
    Ok(file.flush()?)
}

fn main() -> anyhow::Result<()> {
    if roles::play()? {
        return Ok(());
    }
    let arguments = Arguments::parse();
    let load_before = load();
    let short = text(&arguments, arguments.records, arguments.sentences)?;
    let long = text(&arguments, arguments.records.div_ceil(3), arguments.long_sentences)?;
    let images = images(&arguments)?;
    print_line(
        "check",
        load_before,
        &json!({"builtin_template": arguments.builtin_template, "text": short, "long_text": long, "images": images}),
    );
    Ok(())
}

fn options(pictures: Pictures, in_flight: usize) -> CheckOptions {
    CheckOptions {
        pictures,
        selection: Selection::All,
        duplicates: true,
        requests_in_flight: Some(in_flight),
    }
}

/// Headers from an S3 server in another process, by `check` and by a loop of the same GETs.
fn images(arguments: &Arguments) -> anyhow::Result<Value> {
    let sources = photos::usual(16)?;
    let pictures: Vec<Vec<u8>> =
        (0..arguments.pictures).map(|number| sources[number % sources.len()].clone()).collect();
    let dataset = Dataset::write(&pictures, arguments.pictures as u64)?;
    let (server, endpoint) = roles::start_s3(&dataset)?;
    let (cache, limits) = ("sharedMemory: 64Mi, fetch: 256Mi, decode: 1Gi", "maxImagePixels: 30000000");
    let path =
        dataset.pipeline(&PipelineText { s3: true, max_pixels: 602_112, processor: "", cache, limits })?;
    let pipeline = read_pipeline(&path)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let in_flight = arguments.in_flight;
    let settings = S3Settings {
        endpoint: Some(endpoint.clone()),
        force_path_style: true,
        credentials: CredentialsSource::Folder(dataset.keys()),
        ..S3Settings::default()
    };
    let (mut checks, mut loops, mut cpus) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=arguments.rounds {
        let machine = Options {
            threads: Some(1),
            s3_endpoint: Some(endpoint.clone()),
            s3_credentials_dir: Some(dataset.keys()),
            ..Options::default()
        };
        let opened = runtime.block_on(Check::open(
            &pipeline,
            options(Pictures::Headers, in_flight),
            machine,
            None,
            None,
        ));
        let mut check = opened?;
        runtime.block_on(check.read_text())?;
        let (begun, cpu_before) = (now(), cpu());
        runtime.block_on(check.read_pictures())?;
        let (checked, check_cpu) = (begun.elapsed().as_secs_f64(), cpu() - cpu_before);
        let fetching = FetchSettings { max_in_flight: in_flight, ..FetchSettings::default() };
        let stores = Stores::new(settings.clone(), fetching)?;
        let (begun, cpu_before) = (now(), cpu());
        let asked = (0..arguments.pictures).map(|number| {
            let stores = stores.clone();
            let uri = ObjectUri::S3 { bucket: BUCKET.into(), key: format!("images/{number:04}.jpg") };
            async move { stores.get_start(&uri, 32 << 10, 32 << 20).await.map(|(bytes, _)| bytes.len()) }
        });
        let mut asked = futures_util::stream::iter(asked).buffer_unordered(in_flight);
        runtime.block_on(async {
            while let Some(got) = asked.next().await {
                got?;
            }
            anyhow::Ok(())
        })?;
        let (looped, loop_cpu) = (begun.elapsed().as_secs_f64(), cpu() - cpu_before);
        let rate = |seconds: f64| arguments.pictures as f64 / seconds;
        println!(
            "headers {:.0}/s, the same gets {:.0}/s, cpu {:.0} and {:.0} us each; load {}",
            rate(checked),
            rate(looped),
            1e6 / rate(check_cpu),
            1e6 / rate(loop_cpu),
            load()
        );
        if round > 0 {
            checks.push(rate(checked));
            loops.push(rate(looped));
            cpus.push((1e6 / rate(check_cpu), 1e6 / rate(loop_cpu)));
        }
    }
    drop(server);
    let ratio = median(checks.iter().zip(&loops).map(|(check, plain)| check / plain));
    Ok(json!({
        "pictures": arguments.pictures, "in_flight": in_flight,
        "check_per_s": rounded(median(checks)), "gets_alone_per_s": rounded(median(loops)), "ratio": rounded(ratio),
        "check_cpu_us": rounded(median(cpus.iter().map(|(check, _)| *check))),
        "gets_alone_cpu_us": rounded(median(cpus.iter().map(|(_, plain)| *plain))),
    }))
}

/// The tokenizer as the library reads it, with everything that it knows.
fn library(tokenizer_json: &[u8]) -> anyhow::Result<PipelineTokenizer> {
    let mut file: Value = serde_json::from_slice(tokenizer_json)?;
    let failed =
        |error: &dyn std::fmt::Display| anyhow::anyhow!("the library refuses tokenizer.json: {error}");
    tokenizers::canonicalize_value(&mut file).map_err(|error| failed(&error))?;
    tokenizers::from_json(&file.to_string()).map_err(|error| failed(&error))
}

/// What is measured in turns, in MB/s of records.
#[derive(Clone, Copy)]
enum Work {
    Check,
    /// CPU time with two threads.
    CheckOnTwo,
    Values,
    Parse,
    Prepare,
    Library,
}

impl Work {
    const ALL: [Work; 6] =
        [Work::Check, Work::CheckOnTwo, Work::Values, Work::Parse, Work::Prepare, Work::Library];
}

fn text(arguments: &Arguments, records: u64, sentences: usize) -> anyhow::Result<Value> {
    let dataset = Dataset::write(&[], 0)?;
    let root = dataset.buckets().join("photos");
    let manifest = root.join("data/photos.jsonl");
    write(&manifest, arguments.words, records, sentences)?;
    let (cache, limits) = ("sharedMemory: 64Mi, fetch: 256Mi, decode: 1Gi", "maxImagePixels: 30000000");
    let processor = if arguments.builtin_template { "chatTemplate: Qwen3VL" } else { "" };
    let path =
        dataset.pipeline(&PipelineText { s3: false, max_pixels: 602_112, processor, cache, limits })?;
    let pipeline = read_pipeline(&path)?;
    let bytes = std::fs::read(&manifest)?;
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let file = |name: &str| std::fs::read(root.join("processor").join(name)).with_context(|| name.to_owned());
    let files = ProcessorFiles {
        tokenizer_json: file("tokenizer.json")?,
        tokenizer_config_json: file("tokenizer_config.json").ok(),
        chat_template: file("chat_template.jinja").ok(),
        preprocessor_config_json: file("preprocessor_config.json")?,
    };
    let template = match arguments.builtin_template {
        true => TemplateChoice::Builtin(BuiltinTemplate::Qwen3Vl),
        false => TemplateChoice::Checkpoint,
    };
    let processor = TextProcessor::load(&files, &TextSettings { template, ..TextSettings::default() })?;
    let library = library(&files.tokenizer_json)?;
    let encode = EncodeOptions {
        add_special_tokens: false,
        encode_special_tokens: false,
        padding: Override::Off,
        truncation: Override::Off,
    };
    let rules = RecordRules::from(RecordShape::Conversations);
    let parsed: Vec<_> = lines.iter().map(|line| parse_record(line, &rules)).collect::<Result<_, _>>()?;
    let rows: Vec<_> = parsed.iter().map(|record| processor.prepare(record)).collect::<Result<_, _>>()?;
    let rendered: Vec<String> = rows.iter().map(|row| processor.decode(row.ids())).collect();
    let tokens: usize = rows.iter().map(Prepared::text_len).sum();
    drop(rows);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let check = |threads: usize| -> anyhow::Result<f64> {
        let machine = Options { threads: Some(threads), ..Options::default() };
        let mut opened =
            runtime.block_on(Check::open(&pipeline, options(Pictures::No, 1), machine, None, None))?;
        let begun = cpu();
        runtime.block_on(opened.read_text())?;
        Ok(cpu() - begun)
    };
    let seconds = |work: Work| -> anyhow::Result<f64> {
        Ok(match work {
            Work::Check => check(1)?,
            Work::CheckOnTwo => check(2)?,
            Work::Values => spent(|| {
                lines.iter().filter(|line| black_box(serde_json::from_slice::<Value>(line)).is_ok()).count()
            }),
            Work::Parse => {
                spent(|| lines.iter().filter(|line| black_box(parse_record(line, &rules)).is_ok()).count())
            }
            Work::Prepare => {
                spent(|| parsed.iter().filter(|record| black_box(processor.prepare(record)).is_ok()).count())
            }
            Work::Library => {
                let mut ids = Vec::new();
                spent(|| {
                    for text in &rendered {
                        ids.clear();
                        let _ = black_box(library.encode_into(text, &encode, &mut ids));
                    }
                })
            }
        })
    };
    let mut rates = Work::ALL.map(|_| Vec::new());
    for round in 0..=arguments.rounds {
        for (rates, work) in rates.iter_mut().zip(Work::ALL) {
            let rate = bytes.len() as f64 / 1e6 / seconds(work)?;
            // The first round fills caches.
            if round > 0 {
                rates.push(rate);
            }
        }
        if round == 0 {
            continue;
        }
        let last = rates.each_ref().map(|rates| rates.last().copied().unwrap_or_default());
        let [whole, two, value, parse, prepare, library] = last;
        println!(
            "check {whole:.0}, on two threads {two:.0}, serde_json Value {value:.0}, parse {parse:.0}, render and \
             tokenize {prepare:.0}, tokenizers alone {library:.0} MB/s; load {}",
            load()
        );
    }
    let [whole, two, values, parse, prepare, library] = rates.map(median);
    Ok(json!({
        "records": lines.len(),
        "record_bytes": bytes.len() / lines.len().max(1),
        "record_tokens": tokens / lines.len().max(1),
        "check_mb_s": rounded(whole),
        "check_mb_s_per_core_on_two": rounded(two),
        "serde_json_value_mb_s": rounded(values),
        "parse_mb_s": rounded(parse),
        "render_and_tokenize_mb_s": rounded(prepare),
        "tokenizers_alone_mb_s": rounded(library),
        "check_of_what_it_cannot_leave_out": rounded(whole * (1.0 / parse + 1.0 / prepare)),
        "check_of_tokenizers_alone": rounded(whole / library),
        "goal_mb_s": 200,
    }))
}
