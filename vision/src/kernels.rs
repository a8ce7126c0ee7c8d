//! Which vector instructions this processor has. All kernels give the same bytes.

/// The kernels that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// Plain code, on every processor.
    Scalar,
    /// 256 bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512 bit vectors with 16 bit dot products (VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernels {
    /// The fastest that this processor can run.
    pub(crate) fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// All that this processor can run, slowest first.
    pub(crate) fn available() -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            let wide = std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512bw")
                && std::arch::is_x86_feature_detected!("avx512vnni");
            let all = &[Self::Scalar, Self::Avx2, Self::Avx512];
            return if wide { all } else { &all[..2] };
        }
        &[Self::Scalar]
    }
}
