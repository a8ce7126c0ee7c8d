//! Takes JPEG files, gives a folder laid out as a bucket, and pipelines over it.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use tempfile::TempDir;

/// YAML of `spec.cache` for photographs of 0.9 megapixels: no budget is ever full.
pub const USUAL_CACHE: &str = "sharedMemory: 512Mi, fetch: 256Mi, decode: 1Gi";

/// YAML of `spec.limits` for photographs: none comes near them.
pub const USUAL_LIMITS: &str = "maxImagePixels: 33177600, maxImageBytes: 32Mi, maxSampleBytes: 64Mi";

/// The bucket.
pub const BUCKET: &str = "photos";

const SENTENCES: [&str; 6] = [
    "The picture shows a wooden table, and its surface is worn.",
    "In the foreground there is a tall tower, which takes up most of the frame.",
    "Behind it one can see a quiet lake, partly hidden by a shadow.",
    "On the left stands a row of lamps, with a clear sky above it.",
    "Near the edge lies a white helmet, and nobody is near it.",
    "The light falls on an animal with green eyes, in warm colours.",
];

/// `count` sentences, from the one of this number on.
#[must_use]
pub fn prose(from: u64, count: u64) -> String {
    let sentence = |at: u64| SENTENCES[at as usize % SENTENCES.len()];
    (from..from + count).map(sentence).collect::<Vec<_>>().join(" ")
}

/// A folder of buckets, keys for it, and room for pipelines; goes when dropped.
pub struct Dataset {
    root: TempDir,
    /// Records of the manifest.
    pub records: u64,
}

/// What a pipeline over the data set says.
#[derive(Clone, Copy, Debug)]
pub struct PipelineText<'a> {
    /// Through an S3 server, not from files.
    pub s3: bool,
    /// Most pixels of a picture after the resize.
    pub max_pixels: u64,
    /// YAML of `spec.processor` beside its place and bounds, as `chatTemplate: Qwen3VL`; mostly nothing.
    pub processor: &'a str,
    /// YAML of `spec.cache`.
    pub cache: &'a str,
    /// YAML of `spec.limits`.
    pub limits: &'a str,
}

impl Dataset {
    /// Writes pictures, a conversation for each of `records` records, which take the pictures in turn, and
    /// the golden processor.
    ///
    /// # Errors
    /// No room on the disk, goldens that are not there.
    pub fn write(pictures: &[Vec<u8>], records: u64) -> anyhow::Result<Self> {
        Self::with_texts(pictures, records, |number| {
            let question = format!("<image>\nDescribe photograph {number:06} in detail.");
            [question, prose(number, 9), "What else is there?".into(), prose(number + 3, 4)]
        })
    }

    /// The same with the four texts of each record, a question and an answer twice.
    ///
    /// # Errors
    /// No room on the disk, goldens that are not there.
    pub fn with_texts(
        pictures: &[Vec<u8>],
        records: u64,
        texts: impl Fn(u64) -> [String; 4],
    ) -> anyhow::Result<Self> {
        let dataset = Self { root: tempfile::tempdir()?, records };
        for name in ["images", "data", "processor"] {
            std::fs::create_dir_all(dataset.bucket().join(name))?;
        }
        for (number, picture) in pictures.iter().enumerate() {
            std::fs::write(dataset.bucket().join(format!("images/{number:04}.jpg")), picture)?;
        }
        let mut manifest = std::io::BufWriter::new(std::fs::File::create(dataset.manifest())?);
        for number in 0..records {
            let [question, answer, another, last] = texts(number);
            let record = json!({
                "id": format!("photo-{number:06}"),
                "image": format!("{:04}.jpg", number % pictures.len().max(1) as u64),
                "conversations": [
                    {"from": "human", "value": question},
                    {"from": "gpt", "value": answer},
                    {"from": "human", "value": another},
                    {"from": "gpt", "value": last},
                ],
            });
            writeln!(manifest, "{record}")?;
        }
        manifest.flush()?;
        let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizer"));
        let processor = dataset.bucket().join("processor");
        for name in ["chat_template.jinja", "preprocessor_config.json", "tokenizer_config.json"] {
            std::fs::copy(golden.join(name), processor.join(name)).with_context(|| name.to_owned())?;
        }
        let packed = std::fs::File::open(golden.join("tokenizer.json.gz"))?;
        let mut unpacked = std::fs::File::create(processor.join("tokenizer.json"))?;
        std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut unpacked)?;
        dataset.write_keys()?;
        Ok(dataset)
    }

    /// Copies a folder that `hf_baseline/make_photos.py` made.
    ///
    /// # Errors
    /// A folder of another layout.
    pub fn copy(folder: &Path) -> anyhow::Result<Self> {
        let mut dataset = Self { root: tempfile::tempdir()?, records: 0 };
        for name in ["images", "data", "processor"] {
            let to = dataset.bucket().join(name);
            std::fs::create_dir_all(&to)?;
            let from = folder.join(name);
            for entry in std::fs::read_dir(&from).with_context(|| from.display().to_string())? {
                let entry = entry?;
                std::fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
        }
        dataset.records = std::fs::read_to_string(dataset.manifest())?.lines().count() as u64;
        dataset.write_keys()?;
        Ok(dataset)
    }

    fn write_keys(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(self.keys())?;
        std::fs::create_dir_all(self.cache())?;
        std::fs::write(self.keys().join("access-key-id"), "bench")?;
        std::fs::write(self.keys().join("secret-access-key"), "bench-secret")?;
        for folder in ["images", "data", "processor"] {
            for entry in std::fs::read_dir(self.bucket().join(folder))? {
                let entry = entry?;
                self.note_tag(
                    &format!("{folder}/{}", entry.file_name().to_string_lossy()),
                    entry.metadata()?.len(),
                )?;
            }
        }
        Ok(())
    }

    /// What the embedded S3 server notes when an object is put through it. Without the note it would hash the
    /// whole file at every request, which no real server does.
    fn note_tag(&self, key: &str, bytes: u64) -> anyhow::Result<()> {
        let [bucket, encoded] = [BUCKET, key].map(|name| URL_SAFE_NO_PAD.encode(name));
        let note = self.buckets().join(format!(".bucket-{bucket}.object-{encoded}.internal.json"));
        let tag = format!("{key}-{bytes}").replace('/', "-");
        Ok(std::fs::write(note, json!({"e_tag": tag}).to_string())?)
    }

    /// The folder whose subfolders are buckets.
    #[must_use]
    pub fn buckets(&self) -> PathBuf {
        self.root.path().join("buckets")
    }

    /// The folder that is the bucket.
    #[must_use]
    pub fn bucket(&self) -> PathBuf {
        self.buckets().join(BUCKET)
    }

    fn manifest(&self) -> PathBuf {
        self.bucket().join("data/photos.jsonl")
    }

    /// The folder with S3 keys.
    #[must_use]
    pub fn keys(&self) -> PathBuf {
        self.root.path().join("keys")
    }

    /// A folder for downloaded manifests.
    #[must_use]
    pub fn cache(&self) -> PathBuf {
        self.root.path().join("cache")
    }

    /// The pictures, in the order of their names.
    ///
    /// # Errors
    /// A picture that cannot be read.
    pub fn pictures(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let listed = std::fs::read_dir(self.bucket().join("images"))?;
        let mut paths: Vec<_> =
            listed.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
        paths.sort();
        Ok(paths.iter().map(std::fs::read).collect::<Result<_, _>>()?)
    }

    /// Writes a pipeline with one stream, `train`, over all of it.
    ///
    /// # Errors
    /// No room on the disk.
    pub fn pipeline(&self, text: &PipelineText<'_>) -> anyhow::Result<PathBuf> {
        let at =
            if text.s3 { format!("s3://{BUCKET}") } else { format!("file://{}", self.bucket().display()) };
        let PipelineText { max_pixels, processor, cache, limits, .. } = text;
        let min_pixels = (*max_pixels).min(65_536);
        let yaml = format!(
            "apiVersion: feedmill.dev/v1alpha1\nkind: DataPipeline\nmetadata: {{name: bench}}\nspec:\n  \
             s3: {{region: us-east-1, forcePathStyle: true}}\n  processor: {{uri: \"{at}/processor/\", \
             minPixels: {min_pixels}, maxPixels: {max_pixels}, maxTokens: 32768, {processor}}}\n  limits: {{{limits}}}\n  \
             cache: {{{cache}}}\n  streams:\n    - name: train\n      seed: 42\n      badSamples: Fail\n      \
             datasets: [{{name: photos, uri: \"{at}/data/photos.jsonl\", imageBaseUri: \"{at}/images/\"}}]\n"
        );
        let path = self.root.path().join(format!("pipeline-{max_pixels}.yaml"));
        std::fs::write(&path, yaml)?;
        Ok(path)
    }
}
