//! Which vector instructions this processor has. All kernels give the same bytes.

use std::sync::OnceLock;

/// Names the kernels that may run at most, for measuring: `scalar`, `avx2` or `avx512`.
const LIMIT: &str = "FEEDMILL_KERNELS";

/// Vector instructions, slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kernels {
    /// Plain code, on every processor.
    Scalar,
    /// 256 bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512 bit vectors with byte permutes (VBMI) and 16 bit dot products (VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernels {
    /// The fastest that this processor can run and the environment's `FEEDMILL_KERNELS` allows. That variable is
    /// for benches, which compare kernels; every value of it gives the same bytes.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Kernels> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let limit = std::env::var(LIMIT).ok();
            let allowed = |kernels: &&Self| limit.as_deref().is_none_or(|name| **kernels <= Self::named(name));
            Self::available().iter().rfind(allowed).copied().unwrap_or(Self::Scalar)
        })
    }

    /// All that this processor can run, slowest first.
    pub fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            let wide = std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512bw")
                && std::arch::is_x86_feature_detected!("avx512vbmi")
                && std::arch::is_x86_feature_detected!("avx512vnni");
            let all = &[Self::Scalar, Self::Avx2, Self::Avx512];
            return if wide { all } else { &all[..2] };
        }
        &[Self::Scalar]
    }

    /// A name of its own in the variable and in benches' figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
        }
    }

    /// The kernels of a name; the fastest for a name that there is not.
    fn named(name: &str) -> Self {
        match name {
            "scalar" => Self::Scalar,
            #[cfg(target_arch = "x86_64")]
            "avx2" => Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            _ => Self::Avx512,
            #[cfg(not(target_arch = "x86_64"))]
            _ => Self::Scalar,
        }
    }
}
