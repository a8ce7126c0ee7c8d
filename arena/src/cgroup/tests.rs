use super::*;

const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1_MOUNT: &str = "\
28 24 0:24 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
33 24 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:15 - cgroup cgroup rw,memory\n";

#[test]
fn limit_files_are_found_from_the_kernels_descriptions() {
    let container_v1 =
        "736 732 0:28 /docker/abc /sys/fs/cgroup/memory ro master:15 - cgroup cgroup rw,memory\n";
    let odd_mount = "30 23 0:26 / /mnt/c\\040g rw - cgroup2 none rw\n";
    let hybrid = format!("{V1_MOUNT}35 24 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    for (case, cgroup, mounts, expected) in [
        ("v2, namespace", "0::/\n", V2_MOUNT, vec!["/sys/fs/cgroup/memory.max"]),
        (
            "v2, parents too",
            "0::/kubepods/pod1/c1\n",
            V2_MOUNT,
            vec![
                "/sys/fs/cgroup/kubepods/pod1/c1/memory.max",
                "/sys/fs/cgroup/kubepods/pod1/memory.max",
                "/sys/fs/cgroup/kubepods/memory.max",
                "/sys/fs/cgroup/memory.max",
            ],
        ),
        ("v2, path outside of the namespace", "0::/../other\n", V2_MOUNT, vec!["/sys/fs/cgroup/memory.max"]),
        ("v2, blank in the mount point", "0::/\n", odd_mount, vec!["/mnt/c g/memory.max"]),
        (
            "v1, among other controllers",
            "11:cpu,cpuacct:/a\n9:memory:/docker/x\n1:name=systemd:/b\n",
            V1_MOUNT,
            vec![
                "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ],
        ),
        (
            "v1, the mount shows a part of the tree",
            "9:memory:/docker/abc/inner\n",
            container_v1,
            vec![
                "/sys/fs/cgroup/memory/inner/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ],
        ),
        (
            "v1, path outside of the mount",
            "9:memory:/elsewhere\n",
            container_v1,
            vec!["/sys/fs/cgroup/memory/memory.limit_in_bytes"],
        ),
        (
            "hybrid: both are looked at",
            "9:memory:/a\n0::/\n",
            hybrid.as_str(),
            vec![
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/unified/memory.max",
            ],
        ),
        ("no cgroups mounted", "0::/\n", "22 1 0:20 / /proc rw - proc proc rw\n", vec![]),
        ("nonsense", "::\nx\n0:memory\n", "a b\n- - -\n", vec![]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(PathBuf::from).collect();
        assert_eq!(limit_files(cgroup, mounts), expected, "{case}");
    }
}

#[test]
fn limits_are_numbers_or_max() {
    for (text, expected) in [
        ("max\n", Ok(None)),
        ("4294967296\n", Ok(Some(4_294_967_296))),
        ("0", Ok(Some(0))),
        ("9223372036854771712\n", Ok(None)),
        ("", Err(())),
        ("-1", Err(())),
        ("4G", Err(())),
    ] {
        assert_eq!(parse_limit(text), expected, "{text:?}");
    }
}

#[test]
fn budgets_and_overhead_must_fit() {
    const MB: u64 = 1_000_000;
    let demands = |arena, fetch, decode| {
        [("arena", arena), ("budgets.fetch", fetch), ("budgets.decode", decode)]
            .map(|(setting, megabytes)| Demand { setting, bytes: megabytes * MB })
    };
    let limit = |megabytes| MemoryLimit { bytes: megabytes * MB, file: PathBuf::from("/c/memory.max") };
    for (demands, megabytes, expected) in [
        (demands(1000, 200, 500), 2000, None),
        (demands(1000, 200, 500), 1999, Some(("arena", 999))),
        (demands(1000, 200, 5000), 2000, Some(("budgets.decode", 500))),
        (demands(1000, 900, 900), 500, Some(("arena", 0))),
    ] {
        match (check_against_limit(&demands, &limit(megabytes)), expected) {
            (Ok(()), None) => {}
            (Err(CgroupError::DoesNotFit { setting, fitting, file, .. }), Some(expected)) => {
                assert_eq!((setting, fitting / MB), expected);
                assert_eq!(file, Path::new("/c/memory.max"));
            }
            (result, expected) => panic!("{result:?} instead of {expected:?}"),
        }
    }
    let absurd = [Demand { setting: "arena", bytes: u64::MAX }, Demand { setting: "fetch", bytes: u64::MAX }];
    let error = check_against_limit(&absurd, &limit(1)).unwrap_err().to_string();
    assert!(error.contains("lower") && error.contains("/c/memory.max"), "{error}");
    assert!(check_against_limit(&[], &limit(1)).is_ok(), "nothing demanded, nothing refused");
}

#[test]
fn this_process_can_be_asked() {
    // Whatever limits the machine that runs the tests: it can be read, and no bytes always fit.
    assert!(check_against_cgroup(&[]).is_ok());
}
