//! The resource as it is written.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::quantity::Quantity;
use super::whole;

/// What manifests, pictures and processors are addressed by.
const ADDRESS: &str = "^(s3://[^/]+/|file:///)";
/// Names that stand in paths and labels.
const NAME: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
/// Names of Kubernetes' objects.
const OBJECT: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
/// Whole numbers that JSON carries exactly.
const MAX_EXACT: u64 = (1 << 53) - 1;

/// A whole `DataPipeline` document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pipeline {
    /// Always `feedmill.dev/v1alpha1`.
    pub api_version: String,
    /// Always `DataPipeline`.
    pub kind: String,
    /// Kubernetes metadata; only the name is read.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: PipelineSpec,
}

/// The part of Kubernetes metadata that is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
    /// The pipeline's name.
    pub name: String,
}

/// What is wanted of a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineSpec {
    /// Where `s3://` addresses lead.
    #[serde(default)]
    pub s3: S3Spec,
    /// The streams that trainers read; usually one named `train`.
    #[schemars(length(min = 1, max = 16))]
    pub streams: Vec<StreamSpec>,
    /// The model's processor.
    pub processor: ProcessorSpec,
    /// What makes a record bad. Part of the plan.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// Memory and disk of each worker. Not part of the plan.
    #[serde(default)]
    pub cache: CacheSpec,
    /// How batches are served. Not part of the plan.
    #[serde(default)]
    pub serving: ServingSpec,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disruption_budget: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<Value>,
    /// What only a cluster reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<Value>,
}

impl PipelineSpec {
    /// What programs outside of a cluster read; nothing of what only a cluster reads.
    #[must_use]
    pub fn of_data(
        s3: S3Spec,
        streams: Vec<StreamSpec>,
        processor: ProcessorSpec,
        limits: LimitsSpec,
        cache: CacheSpec,
        serving: ServingSpec,
    ) -> Self {
        Self {
            s3,
            streams,
            processor,
            limits,
            cache,
            serving,
            suspend: None,
            replicas: None,
            autoscaling: None,
            placement: None,
            update_strategy: None,
            disruption_budget: None,
            drain_seconds: None,
            network_policy: None,
            worker: None,
            pod_template: None,
        }
    }
}

/// A server without a path: buckets and keys are put there.
pub const ENDPOINT: &str = r"^https?://([A-Za-z0-9_][-A-Za-z0-9._]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?$";

/// Where `s3://` addresses lead. Credentials come from the environment, from mounted files, or in a cluster from a Secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Spec {
    /// AWS region; `us-east-1` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub region: Option<String>,
    /// `http(s)://host[:port]` of a server other than AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = ENDPOINT))]
    pub endpoint: Option<String>,
    /// Put the bucket into the path instead of the host name.
    #[serde(default)]
    pub force_path_style: bool,
    /// In a cluster: the Secret of the same namespace with the keys `access-key-id`, `secret-access-key` and perhaps
    /// `session-token`, which workers read again when they change. Absent: what the pods have (web identity, instance).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretRef>,
    /// In a cluster: certificates of the authorities that S3 servers are signed by; no others are then trusted. Absent: those of the
    /// worker's image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<BundleRef>,
}

/// A key of a ConfigMap or Secret of the pipeline's namespace, with certificates in PEM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleRef {
    /// What it is.
    #[serde(default)]
    pub kind: BundleKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = OBJECT))]
    pub name: String,
    /// The key.
    #[serde(default = "ca_crt")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// What holds certificates of authorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BundleKind {
    /// A ConfigMap.
    #[default]
    ConfigMap,
    /// A Secret.
    Secret,
}

fn ca_crt() -> String {
    "ca.crt".into()
}

/// A Secret of the pipeline's namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = OBJECT))]
    pub name: String,
}

/// One endless stream of samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamSpec {
    /// Its name in paths: lower-case letters, digits and minus.
    #[schemars(length(min = 1, max = 32), regex(pattern = NAME))]
    pub name: String,
    /// Seed of the order, 0..2^53-1.
    #[serde(default, deserialize_with = "whole::seed")]
    #[schemars(range(max = MAX_EXACT))]
    pub seed: u64,
    /// Permute each epoch anew; false reads the data sets as they stand.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// What it is read for.
    #[serde(default)]
    pub purpose: Purpose,
    /// What stands where a record cannot be used. Default: Substitute, for Evaluation ZeroLoss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad_samples: Option<BadSamplePolicy>,
    /// The data sets, in order. The same file may stand twice, under two names.
    #[schemars(length(min = 1, max = 256))]
    pub datasets: Vec<DatasetSpec>,
}

/// What a stream is read for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Purpose {
    /// Training.
    #[default]
    Train,
    /// Evaluation: bad rows carry no loss instead of another record, and scaling does not count it.
    Evaluation,
}

/// What stands where a record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BadSamplePolicy {
    /// Another record of the same epoch, chosen by a hash of the position.
    Substitute,
    /// One end-of-text token without loss.
    ZeroLoss,
    /// The range answers 422.
    Fail,
}

/// One manifest and where its images lie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// Its name in metrics and messages.
    #[schemars(length(min = 1, max = 63), regex(pattern = NAME))]
    pub name: String,
    /// `s3://bucket/key` or `file:///path` of a JSONL file or a JSON array; plain, gzip or zstd. Or of Parquet files: a file that ends
    /// in `.parquet`, a folder that ends in `/`, or `*` in the last part.
    #[schemars(length(max = 2048), regex(pattern = ADDRESS))]
    pub uri: String,
    /// What relative image references are joined to; the manifest's own folder when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = ADDRESS))]
    pub image_base_uri: Option<String>,
    /// Prefixes of image references that are stored elsewhere; the first that fits counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub image_prefixes: Vec<ImagePrefix>,
    /// `s3://bucket/prefix` and `file:///folder` places, beside the image base, below which absolute references may
    /// lead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 2048), regex(pattern = ADDRESS)))]
    pub image_roots: Vec<String>,
    /// Shape of its records.
    #[serde(default)]
    pub record_format: RecordFormat,
    /// Which column of a record holds what, where it is not one of the usual names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "columns_schema")]
    pub columns: BTreeMap<ColumnPart, String>,
    /// A jinja template that writes a record's messages, as JSON, from its columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub template: Option<String>,
    /// How much of it an epoch holds: 250 = two and a half times.
    #[serde(default = "hundred", deserialize_with = "whole::percent")]
    #[schemars(range(min = 1, max = 100_000))]
    pub percent: u32,
    /// 1-based physical lines to treat as bad; of Parquet files 1-based rows, counted through all files in the order of their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000), inner(range(min = 1, max = MAX_EXACT)))]
    pub exclude: Vec<u64>,
}

impl DatasetSpec {
    /// Whether its records stand in Parquet files: by its name alone, so that budgets are known before anything is read.
    #[must_use]
    pub fn is_parquet(&self) -> bool {
        self.uri.ends_with(".parquet") || self.uri.ends_with('/')
    }
}

/// Shape of a data set's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RecordFormat {
    /// Detected from the first records and then fixed.
    #[default]
    Auto,
    /// `conversations` of `from`/`value` turns (LLaVA, ShareGPT).
    Conversations,
    /// `messages` of `role`/`content` turns (OpenAI).
    Messages,
    /// `texts` of `user`/`assistant` pairs beside images (the_cauldron, FineVision).
    Texts,
    /// A question and its answer, or a list of answers, beside images (VQA tables).
    QuestionAnswer,
    /// A prompt, perhaps with an input, and a response (Alpaca, ms-swift).
    PromptResponse,
}

/// A prefix of image references and where what lies below it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePrefix {
    /// What references begin with, byte for byte, ending in `/`.
    #[schemars(length(min = 1, max = 1024), regex(pattern = "/$"))]
    pub from: String,
    /// `s3://bucket/prefix`, `file:///folder`, or a folder below the image base; "" is the image base itself.
    #[schemars(length(max = 2048))]
    pub to: String,
}

/// A part of a record that stands in a column of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ColumnPart {
    /// The record's name, for people; usually `id`.
    Id,
    /// Its image or list of images; usually `image` or `images`.
    Image,
    /// Turns of `from` and `value`; usually `conversations`.
    Conversations,
    /// Turns of `role` and `content`; usually `messages`.
    Messages,
    /// Pairs of `user` and `assistant`; usually `texts`.
    Texts,
    /// A question about the images; usually `question` or `query`.
    Question,
    /// Its answer or answers; usually `answer`, `answers` or `label`.
    Answer,
    /// What the user asks for; usually `instruction`, `prompt` or `query`.
    Prompt,
    /// What the prompt is about; usually `input`.
    Input,
    /// What the assistant answers; usually `output`, `response` or `completion`.
    Response,
    /// Earlier turns; usually `history`.
    History,
    /// The system message; usually `system`.
    System,
    /// Tool descriptions; usually `tools`.
    Tools,
}

/// The model's processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProcessorSpec {
    /// Folder with tokenizer.json, tokenizer_config.json, the chat template and preprocessor_config.json.
    #[schemars(length(max = 2048), regex(pattern = ADDRESS))]
    pub uri: String,
    /// Replaces the configuration's smallest picture, in pixels.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "whole::min_pixels")]
    #[schemars(range(min = 1, max = 4_294_967_296_u64))]
    pub min_pixels: Option<u64>,
    /// Replaces the configuration's largest picture, in pixels.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "whole::max_pixels")]
    #[schemars(range(min = 1, max = 4_294_967_296_u64))]
    pub max_pixels: Option<u64>,
    /// Longest sample, in tokens.
    #[serde(default = "max_tokens", deserialize_with = "whole::max_tokens")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: u32,
    /// What happens to a sample that is longer.
    #[serde(default)]
    pub too_long: TooLongPolicy,
    /// Which chat template is used.
    #[serde(default)]
    pub chat_template: ChatTemplate,
    /// Variables handed to the template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "x-kubernetes-preserve-unknown-fields" = true))]
    pub template_kwargs: BTreeMap<String, Value>,
    /// The date that a template may ask for, `YYYY-MM-DD`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10), regex(pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"))]
    pub date: Option<String>,
    /// What happens to control tokens written in records.
    #[serde(default)]
    pub control_tokens: ControlTokensSpec,
    /// Which tokens are supervised.
    #[serde(default)]
    pub labels: LabelsSpec,
    /// How pictures become RGB.
    #[serde(default)]
    pub colors: ColorsSpec,
}

/// What happens to a sample longer than `maxTokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TooLongPolicy {
    /// Its pictures are made smaller, all by the largest common limit with which it fits.
    #[default]
    ShrinkImages,
    /// It is a bad record.
    Substitute,
    /// Its last turns are left out, whole and with their pictures, until it fits.
    DropTurns,
    /// The range answers 422.
    Fail,
}

/// Which chat template is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ChatTemplate {
    /// The checkpoint's own file.
    #[default]
    Checkpoint,
    /// Built in, as Qwen2-VL's.
    Qwen2VL,
    /// Built in, as Qwen2.5-VL's.
    #[serde(rename = "Qwen2.5VL")]
    Qwen25VL,
    /// Built in, as Qwen3-VL's.
    Qwen3VL,
}

/// What happens to control tokens written in records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControlTokensSpec {
    /// Grounding and tool tokens in assistant text.
    #[serde(default)]
    pub assistant: AssistantControlTokens,
    /// Whether control tokens in records are text. `false` is what Hugging Face does unasked: a record can then forge turns
    /// and images.
    #[serde(default = "yes")]
    pub sanitize: bool,
}

impl Default for ControlTokensSpec {
    fn default() -> Self {
        Self { assistant: AssistantControlTokens::default(), sanitize: true }
    }
}

/// Grounding and tool tokens in assistant text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AssistantControlTokens {
    /// They stay single tokens; turn, vision and padding tokens never do.
    #[default]
    KeepContent,
    /// They become plain text like everywhere else.
    Escape,
}

/// Which tokens are supervised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelsSpec {
    /// Only the last assistant turn.
    #[serde(default)]
    pub last_turn_only: bool,
    /// The newline after the end-of-turn token too.
    #[serde(default = "yes")]
    pub newline: bool,
}

impl Default for LabelsSpec {
    fn default() -> Self {
        Self { last_turn_only: false, newline: true }
    }
}

/// How pictures become RGB; toolkits differ here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ColorsSpec {
    /// Turn pictures as their EXIF says.
    #[serde(default = "yes")]
    pub exif_orientation: bool,
    /// Lay transparent pictures on white; false drops the alpha channel.
    #[serde(default = "yes")]
    pub alpha_on_white: bool,
}

impl Default for ColorsSpec {
    fn default() -> Self {
        Self { exif_orientation: true, alpha_on_white: true }
    }
}

/// What makes a record bad. Part of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LimitsSpec {
    /// Longest line of a manifest.
    pub max_line_bytes: Quantity,
    /// Largest picture file.
    pub max_image_bytes: Quantity,
    /// Most pixels of a picture, by its header.
    #[serde(deserialize_with = "whole::max_image_pixels")]
    #[schemars(range(min = 1, max = 4_294_967_296_u64))]
    pub max_image_pixels: u64,
    /// Most bytes of all picture files of one record.
    pub max_sample_bytes: Quantity,
}

impl Default for LimitsSpec {
    fn default() -> Self {
        Self {
            max_line_bytes: Quantity(16 << 20),
            max_image_bytes: Quantity(64 << 20),
            // Pillow's limit before it calls a picture a bomb.
            max_image_pixels: 178_956_970,
            max_sample_bytes: Quantity(256 << 20),
        }
    }
}

/// Memory and disk of each worker. Not part of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CacheSpec {
    /// Shared memory for finished samples.
    pub shared_memory: Quantity,
    /// Disk for downloaded manifests.
    pub disk: Quantity,
    /// Memory for picture files that are fetched and not yet decoded.
    pub fetch: Quantity,
    /// Memory for pictures being decoded.
    pub decode: Quantity,
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self {
            shared_memory: Quantity(4 << 30),
            disk: Quantity(10 << 30),
            fetch: Quantity(1 << 30),
            // One picture at the default limit of pixels, at the 26 bytes a pixel that WebP may take.
            decode: Quantity(5 << 30),
        }
    }
}

/// How batches are served. Not part of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ServingSpec {
    /// Most samples in one range.
    #[serde(deserialize_with = "whole::max_range")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_range: u32,
    /// In a cluster: the Secret of the same namespace whose key `token` has the tokens that are admitted, one a line, which
    /// workers read again when they change. Absent: whoever reaches a worker reads batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretRef>,
    /// In a cluster: the Secret of the same namespace with `tls.crt` and `tls.key`, which workers read again when they change.
    /// The certificate must have the name that trainers ask for. Absent: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_secret_ref: Option<SecretRef>,
}

impl Default for ServingSpec {
    fn default() -> Self {
        Self { max_range: 64, token_secret_ref: None, tls_secret_ref: None }
    }
}

/// One string for each part, so that another name is an unknown field.
fn columns_schema(generator: &mut SchemaGenerator) -> Schema {
    let parts = ColumnPart::json_schema(generator);
    let names = parts.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    let properties: serde_json::Map<String, Value> = names
        .filter_map(|part| {
            let name = part.get("const")?.as_str()?.to_owned();
            let description = part.get("description").cloned().unwrap_or_default();
            Some((
                name,
                json!({"type": "string", "minLength": 1, "maxLength": 256, "description": description}),
            ))
        })
        .collect();
    json_schema!({"type": "object", "properties": properties})
}

fn yes() -> bool {
    true
}

fn hundred() -> u32 {
    100
}

fn max_tokens() -> u32 {
    32_768
}
