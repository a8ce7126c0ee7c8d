//! The model's processor: numbers for pictures, template and tokenizer for text.

use feedmill_protocol::hash::hex;
use feedmill_protocol::model::ModelFacts;
use feedmill_protocol::pipeline::spec::{AssistantControlTokens, ChatTemplate, ProcessorSpec, TooLongPolicy};
use feedmill_source::{FetchError, ObjectPrefix, PermanentKind, Stores, UriError};
use feedmill_text::processor::{
    BuiltinTemplate, ControlTokensAssistant, DateError, LabelSettings, LoadError, ProcessorFiles,
    TemplateChoice, TextProcessor, TextSettings,
};
use feedmill_vision::{ColorPolicy, Geometry, GeometryError};
use sha2::{Digest, Sha256};

/// A processor's file is refused above this; the largest tokenizers have a tenth of it.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The model's processor.
pub struct Processor {
    /// Template and tokenizer.
    pub text: TextProcessor,
    /// Numbers for pictures, with the pipeline's pixel limits applied.
    pub geometry: Geometry,
    /// How pictures become RGB.
    pub colors: ColorPolicy,
    /// Longest sample, in tokens.
    pub max_tokens: usize,
    /// What happens to a longer one.
    pub too_long: TooLongPolicy,
    /// What was asked for, for the plan.
    pub(super) spec: ProcessorSpec,
    /// File name and SHA-256 of each file that was read.
    pub(super) files: Vec<(&'static str, String)>,
}

/// Why a processor cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProcessorError {
    /// Its address.
    #[error("the address cannot be used")]
    Uri(#[from] UriError),
    /// A file cannot be read.
    #[error("{name} cannot be read")]
    File {
        /// The file.
        name: &'static str,
        /// How reading failed.
        #[source]
        source: FetchError,
    },
    /// preprocessor_config.json is no JSON.
    #[error("preprocessor_config.json is not json")]
    Json(#[from] serde_json::Error),
    /// preprocessor_config.json asks for other pixels.
    #[error("preprocessor_config.json cannot be followed exactly")]
    Geometry(#[from] GeometryError),
    /// The pixel limits contradict each other.
    #[error(
        "minPixels {min} is more than maxPixels {max}; where the pipeline says nothing, \
         preprocessor_config.json counts"
    )]
    Pixels {
        /// Smallest picture.
        min: u64,
        /// Largest picture.
        max: u64,
    },
    /// The date.
    #[error("processor.date")]
    Date(#[from] DateError),
    /// Tokenizer and template.
    #[error("tokenizer and chat template cannot be used")]
    Text(#[from] LoadError),
    /// The loading task died.
    #[error("loading ended unexpectedly")]
    Lost,
}

impl Processor {
    pub(super) async fn open(spec: &ProcessorSpec, stores: &Stores) -> Result<Self, ProcessorError> {
        let folder = ObjectPrefix::parse(&spec.uri)?;
        let mut hashes = Vec::new();
        let tokenizer = read(stores, &folder, "tokenizer.json", &mut hashes).await?;
        let config = read(stores, &folder, "preprocessor_config.json", &mut hashes).await?;
        let tokenizer_config = optional(stores, &folder, "tokenizer_config.json", &mut hashes).await?;
        let chat_template = match spec.chat_template {
            ChatTemplate::Checkpoint => {
                match optional(stores, &folder, "chat_template.jinja", &mut hashes).await? {
                    Some(template) => Some(template),
                    None => optional(stores, &folder, "chat_template.json", &mut hashes).await?,
                }
            }
            _ => None,
        };
        let geometry = geometry(spec, &config)?;
        let settings = text_settings(spec)?;
        let files = ProcessorFiles {
            tokenizer_json: tokenizer,
            tokenizer_config_json: tokenizer_config,
            chat_template,
            preprocessor_config_json: config,
        };
        // Large vocabularies take the better part of a second; other tasks go on meanwhile.
        let text = tokio::task::spawn_blocking(move || TextProcessor::load(&files, &settings))
            .await
            .map_err(|_| ProcessorError::Lost)??;
        Ok(Self {
            text,
            geometry,
            colors: ColorPolicy {
                exif_orientation: spec.colors.exif_orientation,
                alpha_on_white: spec.colors.alpha_on_white,
            },
            max_tokens: spec.max_tokens as usize,
            too_long: spec.too_long,
            spec: spec.clone(),
            files: hashes,
        })
    }

    /// What a trainer needs to rebuild the model's tensors from batches.
    #[must_use]
    pub fn model_facts(&self) -> ModelFacts {
        let (geometry, ids) = (&self.geometry, self.text.special_ids());
        ModelFacts {
            patch: geometry.patch,
            merge: geometry.merge,
            temporal: geometry.temporal,
            mean: geometry.mean,
            std: geometry.std,
            pad_id: ids.pad,
            image_pad_id: ids.image_pad,
            vision_start_id: ids.vision_start,
            vision_end_id: ids.vision_end,
        }
    }
}

fn geometry(spec: &ProcessorSpec, config: &[u8]) -> Result<Geometry, ProcessorError> {
    let mut geometry = Geometry::from_preprocessor_config(&serde_json::from_slice(config)?)?;
    geometry.min_pixels = spec.min_pixels.unwrap_or(geometry.min_pixels);
    geometry.max_pixels = spec.max_pixels.unwrap_or(geometry.max_pixels);
    if geometry.min_pixels > geometry.max_pixels {
        return Err(ProcessorError::Pixels { min: geometry.min_pixels, max: geometry.max_pixels });
    }
    Ok(geometry)
}

fn text_settings(spec: &ProcessorSpec) -> Result<TextSettings, ProcessorError> {
    Ok(TextSettings {
        control_tokens_assistant: match spec.control_tokens.assistant {
            AssistantControlTokens::KeepContent => ControlTokensAssistant::KeepContent,
            AssistantControlTokens::Escape => ControlTokensAssistant::Escape,
        },
        labels: LabelSettings {
            last_turn_only: spec.labels.last_turn_only,
            include_newline: spec.labels.newline,
        },
        template: match spec.chat_template {
            ChatTemplate::Checkpoint => TemplateChoice::Checkpoint,
            ChatTemplate::Qwen2VL => TemplateChoice::Builtin(BuiltinTemplate::Qwen2Vl),
            ChatTemplate::Qwen25VL => TemplateChoice::Builtin(BuiltinTemplate::Qwen2_5Vl),
            ChatTemplate::Qwen3VL => TemplateChoice::Builtin(BuiltinTemplate::Qwen3Vl),
        },
        template_kwargs: spec.template_kwargs.clone().into_iter().collect(),
        date: spec.date.as_deref().map(str::parse).transpose()?,
        sanitize: spec.control_tokens.sanitize,
    })
}

async fn read(
    stores: &Stores,
    folder: &ObjectPrefix,
    name: &'static str,
    hashes: &mut Vec<(&'static str, String)>,
) -> Result<Vec<u8>, ProcessorError> {
    // A plain file name always joins.
    let uri = folder.join(name).map_err(|_| ProcessorError::Lost)?;
    let bytes =
        stores.get(&uri, MAX_FILE_BYTES).await.map_err(|source| ProcessorError::File { name, source })?;
    hashes.push((name, hex(&Sha256::digest(&bytes))));
    Ok(bytes.to_vec())
}

async fn optional(
    stores: &Stores,
    folder: &ObjectPrefix,
    name: &'static str,
    hashes: &mut Vec<(&'static str, String)>,
) -> Result<Option<Vec<u8>>, ProcessorError> {
    match read(stores, folder, name, hashes).await {
        Err(ProcessorError::File {
            source: FetchError::Permanent { kind: PermanentKind::Missing, .. },
            ..
        }) => Ok(None),
        result => result.map(Some),
    }
}
