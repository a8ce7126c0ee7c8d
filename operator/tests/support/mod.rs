//! An API server in the process: objects, watches, patches, and faults where a test wants them.
//!
//! Server-side apply merges; what a manager no longer applies is not taken away, but for the number of a Deployment's workers. The real
//! cluster's tests show that part.
#![allow(dead_code, reason = "each test file uses some of it")]

/// One pipeline and its operator.
mod fleet;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use feedmill_operator::types::DataPipeline;
use http::{Method, StatusCode, header};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;

#[allow(unused_imports, reason = "each test file uses some of it")]
pub use fleet::{Fleet, operator};

/// The only namespace of these tests.
pub const NAMESPACE: &str = "team";

/// Where an object stands: `apis/apps/v1/deployments`, namespace, name.
type Place = (String, String, String);

#[derive(Default)]
struct Store {
    version: u64,
    objects: BTreeMap<Place, Value>,
    /// Every change, for watches that begin later than it.
    log: Vec<(u64, &'static str, String, Value)>,
    /// Every write that was taken: method and path.
    writes: Vec<String>,
    /// Writes up to the next one that fails; none: all are taken.
    until_failure: Option<usize>,
    /// Chance, and the share of requests that fail.
    weather: Option<(fastrand::Rng, f64)>,
    /// Who has applied the number of workers of a Deployment.
    numbers: BTreeMap<Place, BTreeSet<String>>,
    /// Kinds of which no write is taken.
    unwritable: Vec<String>,
    /// Kinds that may not be listed.
    unlisted: Vec<String>,
    /// Watches that began before the last change of this number are ended.
    cuts: u64,
    /// Changes up to this version are forgotten: a watch that would begin with one of them is told to list again.
    oldest: u64,
    /// Kinds of which no watch gets anything.
    held: Vec<String>,
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// It is refused with this code.
    Refused(StatusCode),
    /// It is done, and the answer is lost.
    Lost,
}

/// The server.
#[derive(Clone)]
pub struct Server {
    store: Arc<Mutex<Store>>,
    version: watch::Sender<u64>,
}

struct Asked {
    group: String,
    namespace: String,
    name: Option<String>,
    status: bool,
}

fn parse(path: &str) -> Option<Asked> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let base = if parts.first() == Some(&"api") { 2 } else { 3 };
    let (base, rest) = parts.split_at_checked(base)?;
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => ((*namespace).to_owned(), rest),
        rest => (String::new(), rest),
    };
    let (plural, rest) = rest.split_first()?;
    Some(Asked {
        group: format!("{}/{plural}", base.join("/")),
        namespace,
        name: rest.first().map(|name| (*name).to_owned()),
        status: rest.get(1) == Some(&"status"),
    })
}

fn kind_of(group: &str) -> (String, String) {
    let parts: Vec<&str> = group.split('/').collect();
    let version = if parts[0] == "api" { parts[1].to_owned() } else { format!("{}/{}", parts[1], parts[2]) };
    let kind = match *parts.last().unwrap_or(&"") {
        "datapipelines" => "DataPipeline",
        "deployments" => "Deployment",
        "services" => "Service",
        "configmaps" => "ConfigMap",
        "serviceaccounts" => "ServiceAccount",
        "poddisruptionbudgets" => "PodDisruptionBudget",
        "networkpolicies" => "NetworkPolicy",
        "controllerrevisions" => "ControllerRevision",
        "pods" => "Pod",
        "nodes" => "Node",
        "events" => "Event",
        "leases" => "Lease",
        other => panic!("no kind for {other}"),
    };
    (version, kind.to_owned())
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn selected(object: &Value, selector: &str) -> bool {
    selector.is_empty()
        || selector.split(',').all(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            object["metadata"]["labels"][key] == value
        })
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn refusal(code: StatusCode, reason: &str) -> Response {
    json_response(code, &failure(code, reason))
}

/// The same as an event of a watch.
fn told(code: StatusCode, reason: &str) -> Response {
    json_response(StatusCode::OK, &json!({"type": "ERROR", "object": failure(code, reason)}))
}

fn failure(code: StatusCode, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code.as_u16(), "reason": reason, "message": reason})
}

impl Server {
    /// A server without objects.
    pub fn start() -> Self {
        Self { store: Arc::default(), version: watch::Sender::new(0) }
    }

    /// A client without sockets, for time would run on while a request is on its way; like the program's it tries nothing again.
    pub fn client(&self) -> Client {
        Client::new(self.router(), NAMESPACE)
    }

    /// What answers, to be served on a socket as well.
    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Store) -> T) -> T {
        let (result, version) = {
            let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
            let result = act(&mut store);
            (result, store.version)
        };
        // Only what changed wakes watches: reading must not.
        self.version.send_if_modified(|known| std::mem::replace(known, version) != version);
        result
    }

    /// Puts an object there, as people or controllers do.
    pub fn put(&self, group: &str, object: Value) {
        let place = place(group, &object);
        self.with(|store| store.put(place, object));
    }

    /// Changes an object, as people or controllers do.
    pub fn change(&self, group: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.with(|store| {
            let place = at(group, name);
            let mut object = store.objects[&place].clone();
            let spec = object["spec"].clone();
            change(&mut object);
            if object["spec"] != spec {
                object["metadata"]["generation"] =
                    json!(object["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
            }
            store.put(place, object);
        });
    }

    /// Takes an object away, and with a pipeline everything that it owns.
    pub fn remove(&self, group: &str, name: &str) {
        self.with(|store| {
            let place = at(group, name);
            let uid = store.objects[&place]["metadata"]["uid"].clone();
            store.delete(&place);
            let owned: Vec<Place> = store
                .objects
                .iter()
                .filter(|(_, object)| object["metadata"]["ownerReferences"][0]["uid"] == uid)
                .map(|(place, _)| place.clone())
                .collect();
            owned.iter().for_each(|place| store.delete(place));
        });
    }

    /// An object, if it is there.
    pub fn get(&self, group: &str, name: &str) -> Option<Value> {
        self.with(|store| store.objects.get(&at(group, name)).cloned())
    }

    /// Everything that an object has been, in this order.
    pub fn history(&self, group: &str, name: &str) -> Vec<Value> {
        let wanted = at(group, name);
        self.with(|store| {
            let all = store.log.iter().filter(|(_, _, of, object)| place(of, object) == wanted);
            all.map(|(_, _, _, object)| object.clone()).collect()
        })
    }

    /// All objects of a kind.
    pub fn all(&self, group: &str) -> Vec<Value> {
        self.with(|store| {
            let all = store.objects.iter().filter(|(place, _)| place.0 == group);
            all.map(|(_, object)| object.clone()).collect()
        })
    }

    /// How many objects there are of a kind.
    pub fn count(&self, group: &str) -> usize {
        self.with(|store| store.objects.keys().filter(|place| place.0 == group).count())
    }

    /// Writes that were taken so far.
    pub fn writes(&self) -> Vec<String> {
        self.with(|store| store.writes.clone())
    }

    /// Lets so many writes be taken, and refuses the one after with 500.
    pub fn fail_after(&self, writes: usize) {
        self.with(|store| store.until_failure = Some(writes));
    }

    /// From now on this share of requests fails, by chance from a seed: refused, done without an answer, and with each fault watches may
    /// end as well.
    pub fn storm(&self, seed: u64, share: f64) {
        self.with(|store| store.weather = Some((fastrand::Rng::with_seed(seed), share)));
    }

    /// From now on this kind may not be listed.
    pub fn forbid_lists(&self, group: &str) {
        self.with(|store| store.unlisted.push(group.to_owned()));
    }

    /// From now on each write of this kind is refused, as by an admission webhook that is broken; or taken again.
    pub fn break_writes(&self, group: &str, is_broken: bool) {
        self.with(|store| {
            store.unwritable.retain(|other| other != group);
            store.unwritable.extend(is_broken.then(|| group.to_owned()));
        });
    }

    /// From now on watches of this kind are silent: caches grow old. Or they get all that they have missed.
    pub fn hold(&self, group: &str, is_held: bool) {
        self.with(|store| {
            store.held.retain(|other| other != group);
            store.held.extend(is_held.then(|| group.to_owned()));
        });
        self.version.send_modify(|_| {});
    }

    /// No request fails any more.
    pub fn calm(&self) {
        self.with(|store| store.weather = None);
    }

    fn fault(&self) -> Option<Fault> {
        let (fault, cut) = self.with(|store| {
            let (chance, share) = store.weather.as_mut()?;
            if chance.f64() >= *share {
                return None;
            }
            let fault = match chance.u8(0..5) {
                0 => Fault::Refused(StatusCode::TOO_MANY_REQUESTS),
                1 => Fault::Refused(StatusCode::INTERNAL_SERVER_ERROR),
                2 => Fault::Refused(StatusCode::SERVICE_UNAVAILABLE),
                3 => Fault::Refused(StatusCode::FORBIDDEN),
                _ => Fault::Lost,
            };
            let (cut, forget) = (chance.bool(), chance.bool());
            store.cuts += u64::from(cut);
            if cut && forget {
                store.oldest = store.version;
            }
            Some((fault, cut))
        })?;
        if cut {
            self.version.send_modify(|_| {});
        }
        Some(fault)
    }

    /// Whether the failure that was asked for has come.
    pub fn failed(&self) -> bool {
        self.with(|store| store.until_failure.is_none())
    }

    /// Waits until nothing has changed for two minutes, in which every pipeline is looked at.
    pub async fn still(&self) {
        let mut changes = self.version.subscribe();
        let pause = std::time::Duration::from_secs(120);
        while tokio::time::timeout(pause, changes.changed()).await.is_ok() {}
    }

    /// From now on a Deployment says that all of so many workers are there, by its present template.
    pub fn whole(&self, deployment: &str, workers: i64) {
        self.change(DEPLOYMENTS, deployment, |object| {
            object["status"] = json!({"observedGeneration": object["metadata"]["generation"], "replicas": workers,
                "updatedReplicas": workers, "availableReplicas": workers, "readyReplicas": workers});
        });
    }

    /// How many workers the Deployment of a pipeline wants.
    pub fn replicas(&self, pipeline: &str) -> Option<i64> {
        self.get(DEPLOYMENTS, &format!("{pipeline}-worker"))?["spec"]["replicas"].as_i64()
    }

    /// The reason of a condition of a pipeline.
    pub fn reason(&self, pipeline: &str, condition: &str) -> Option<String> {
        let object = self.get(PIPELINES, pipeline)?;
        let found = object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == condition)?;
        found["reason"].as_str().map(str::to_owned)
    }

    /// Waits until the Deployment of a pipeline wants so many workers.
    pub async fn wanted(&self, pipeline: &str, workers: i64) {
        let what = format!("{workers} workers of {pipeline} are wanted");
        self.until(&what, |server| server.replicas(pipeline) == Some(workers)).await;
    }

    /// Waits until a condition of a pipeline has a reason.
    pub async fn told(&self, pipeline: &str, condition: &str, reason: &str) {
        let what = format!("{condition} of {pipeline} is {reason}");
        self.until(&what, |server| server.reason(pipeline, condition).as_deref() == Some(reason)).await;
    }

    /// What stands there, without what differs from run to run.
    pub fn settled(&self) -> Vec<(&'static str, Value)> {
        [DEPLOYMENTS, REVISIONS, SERVICES, MAPS, ACCOUNTS, BUDGETS]
            .into_iter()
            .map(|group| {
                let mut objects = self.all(group);
                for object in &mut objects {
                    for field in ["uid", "resourceVersion", "generation"] {
                        object["metadata"].as_object_mut().unwrap().remove(field);
                    }
                }
                (group, json!(objects))
            })
            .collect()
    }

    /// Waits until something holds of the server.
    pub async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut changes = self.version.subscribe();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                if holds(self) {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        // In virtual time, and far beyond what anything here takes: watches that are cut off again and again pause for half a minute each.
        if tokio::time::timeout(std::time::Duration::from_secs(7200), waiting).await.is_err() {
            panic!("never: {what}; writes: {:#?}", self.writes());
        }
    }
}

fn at(group: &str, name: &str) -> Place {
    (group.to_owned(), NAMESPACE.to_owned(), name.to_owned())
}

fn place(group: &str, object: &Value) -> Place {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (group.to_owned(), text("namespace"), text("name"))
}

impl Store {
    fn put(&mut self, place: Place, mut object: Value) {
        let before = self.objects.get(&place);
        let strip = |object: &Value| {
            let mut object = object.clone();
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            object
        };
        // A write that changes nothing is no event, as in a real one.
        if before.is_some_and(|before| strip(before) == strip(&object)) {
            return;
        }
        self.version += 1;
        let (version, kind) = kind_of(&place.0);
        object["apiVersion"] = version.into();
        object["kind"] = kind.into();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        let event = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.log.push((self.version, event, place.0.clone(), object.clone()));
        self.objects.insert(place, object);
    }

    fn delete(&mut self, place: &Place) {
        let Some(mut object) = self.objects.remove(place) else { return };
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.log.push((self.version, "DELETED", place.0.clone(), object));
    }
}

async fn answer(State(server): State<Server>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(asked) = parse(parts.uri.path()) else { return refusal(StatusCode::NOT_FOUND, "NotFound") };
    let query: BTreeMap<String, String> = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| {
            (key.to_owned(), value.replace("%2F", "/").replace("%3D", "=").replace("%2C", ","))
        })
        .collect();
    let selector = query.get("labelSelector").cloned().unwrap_or_default();
    let fault = server.fault();
    if let Some(Fault::Refused(code)) = fault {
        return refusal(code, "Storm");
    }
    let response = act(&server, parts, body, &asked, &query, selector).await;
    if fault == Some(Fault::Lost) { refusal(StatusCode::GATEWAY_TIMEOUT, "Storm") } else { response }
}

async fn act(
    server: &Server,
    parts: http::request::Parts,
    body: Body,
    asked: &Asked,
    query: &BTreeMap<String, String>,
    selector: String,
) -> Response {
    let Some(name) = &asked.name else {
        if parts.method == Method::POST {
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            return server.create(asked, &body);
        }
        if server.with(|store| store.unlisted.contains(&asked.group)) {
            return refusal(StatusCode::FORBIDDEN, "Forbidden");
        }
        if query.contains_key("watch") {
            let from = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
            return server.watch(asked.group.clone(), selector, from);
        }
        return server.list(asked, &selector);
    };
    let place = (asked.group.clone(), asked.namespace.clone(), name.clone());
    // Refused above; here only an answer can be lost.
    if parts.method == Method::GET {
        return match server.with(|store| store.objects.get(&place).cloned()) {
            Some(object) => json_response(StatusCode::OK, &object),
            None => refusal(StatusCode::NOT_FOUND, "NotFound"),
        };
    }
    if server.with(|store| store.unwritable.contains(&asked.group)) {
        return refusal(StatusCode::INTERNAL_SERVER_ERROR, "WebhookBroken");
    }
    let manager = query.get("fieldManager").cloned().unwrap_or_default();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    server.write(&parts.method, &parts.headers, asked, place, &body, &manager)
}

impl Server {
    /// Whether a write is taken; counted if so.
    fn takes(store: &mut Store, what: String) -> bool {
        // Events depend on the time of day.
        if what.contains("/events") {
            return true;
        }
        match &mut store.until_failure {
            Some(0) => {
                store.until_failure = None;
                return false;
            }
            Some(left) => *left -= 1,
            None => {}
        }
        store.writes.push(what);
        true
    }

    fn create(&self, asked: &Asked, body: &Bytes) -> Response {
        let mut object: Value = serde_json::from_slice(body).unwrap();
        object["metadata"]["namespace"] = asked.namespace.clone().into();
        let place = place(&asked.group, &object);
        self.with(|store| {
            if !Self::takes(store, format!("POST {} {}", asked.group, place.2)) {
                return refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
            }
            if store.objects.contains_key(&place) {
                return refusal(StatusCode::CONFLICT, "AlreadyExists");
            }
            store.put(place.clone(), object);
            json_response(StatusCode::CREATED, &store.objects[&place])
        })
    }

    fn list(&self, asked: &Asked, selector: &str) -> Response {
        self.with(|store| {
            let items: Vec<&Value> = store
                .objects
                .iter()
                .filter(|(place, object)| place.0 == asked.group && selected(object, selector))
                .map(|(_, object)| object)
                .collect();
            let (version, kind) = kind_of(&asked.group);
            let list = json!({"apiVersion": version, "kind": format!("{kind}List"),
                "metadata": {"resourceVersion": store.version.to_string()}, "items": items});
            json_response(StatusCode::OK, &list)
        })
    }

    fn watch(&self, group: String, selector: String, from: u64) -> Response {
        let changes = self.version.subscribe();
        let (cuts, oldest) = self.with(|store| (store.cuts, store.oldest));
        if from < oldest {
            let expired = refusal(StatusCode::GONE, "Expired");
            // A real one says it in either way.
            return if oldest % 2 == 0 { expired } else { told(StatusCode::GONE, "Expired") };
        }
        let start = (self.clone(), changes, from);
        let stream = futures_util::stream::unfold(start, move |(server, mut changes, from)| {
            let (group, selector) = (group.clone(), selector.clone());
            async move {
                loop {
                    changes.borrow_and_update();
                    if server.with(|store| store.cuts) != cuts {
                        return None;
                    }
                    if server.with(|store| store.held.contains(&group)) {
                        changes.changed().await.ok()?;
                        continue;
                    }
                    let (lines, last) = server.with(|store| {
                        let first = store.log.partition_point(|(version, ..)| *version <= from);
                        let new = store.log[first..]
                            .iter()
                            .filter(|(_, _, of, object)| *of == group && selected(object, &selector));
                        let lines: String = new
                            .map(|(_, event, _, object)| {
                                format!("{}\n", json!({"type": event, "object": object}))
                            })
                            .collect();
                        (lines, store.version)
                    });
                    if !lines.is_empty() {
                        return Some((Ok::<_, std::convert::Infallible>(lines), (server, changes, last)));
                    }
                    changes.changed().await.ok()?;
                }
            }
        });
        Response::new(Body::from_stream(stream))
    }

    fn write(
        &self,
        method: &Method,
        headers: &http::HeaderMap,
        asked: &Asked,
        place: Place,
        body: &Bytes,
        manager: &str,
    ) -> Response {
        self.with(|store| {
            let part = if asked.status { "/status" } else { "" };
            if !Self::takes(store, format!("{method} {}{part} {}", asked.group, place.2)) {
                return refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
            }
            let found = store.objects.get(&place).cloned();
            if *method == Method::DELETE {
                let options: Value = serde_json::from_slice(body).unwrap_or_default();
                return match found {
                    Some(object) if is_another(&object, &options["preconditions"]["uid"]) => {
                        refusal(StatusCode::CONFLICT, "Conflict")
                    }
                    Some(object) => {
                        store.delete(&place);
                        json_response(StatusCode::OK, &object)
                    }
                    None => refusal(StatusCode::NOT_FOUND, "NotFound"),
                };
            }
            let given: Value = serde_json::from_slice(body).unwrap();
            if *method == Method::PUT {
                let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
                let is_newest = found.as_ref().is_some_and(|found| version(found) == version(&given));
                if !version(&given).is_null() && !is_newest {
                    return refusal(StatusCode::CONFLICT, "Conflict");
                }
                store.put(place.clone(), given);
                return json_response(StatusCode::OK, &store.objects[&place]);
            }
            let uid = &given["metadata"]["uid"];
            if found.as_ref().map_or(!uid.is_null(), |found| is_another(found, uid)) {
                return refusal(StatusCode::CONFLICT, "Conflict");
            }
            let apply = headers[header::CONTENT_TYPE].to_str().unwrap().contains("apply-patch");
            let Some(mut object) = found.or_else(|| {
                let new = json!({"metadata": {"name": place.2, "namespace": place.1, "generation": 1}});
                apply.then_some(new)
            }) else {
                return refusal(StatusCode::NOT_FOUND, "NotFound");
            };
            let (spec, before) = (object["spec"].clone(), object["data"].clone());
            if asked.status {
                merge(&mut object["status"], &given["status"]);
            } else {
                merge(&mut object, &given);
                if object["immutable"] == true && !before.is_null() && object["data"] != before {
                    return refusal(StatusCode::UNPROCESSABLE_ENTITY, "Invalid");
                }
                if apply && object["kind"] == "Deployment" {
                    let managers = store.numbers.entry(place.clone()).or_default();
                    if !given["spec"]["replicas"].is_null() {
                        managers.insert(manager.to_owned());
                    } else if managers.remove(manager) && managers.is_empty() {
                        object["spec"]["replicas"] = 1.into();
                    }
                }
                if object["kind"] == "Deployment" && object["spec"]["replicas"].is_null() {
                    object["spec"]["replicas"] = 1.into();
                }
                if object["spec"] != spec && !spec.is_null() {
                    object["metadata"]["generation"] =
                        json!(object["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
                }
            }
            store.put(place.clone(), object);
            json_response(StatusCode::OK, &store.objects[&place])
        })
    }
}

fn is_another(object: &Value, uid: &Value) -> bool {
    !uid.is_null() && object["metadata"]["uid"] != *uid
}

/// Where pipelines stand.
pub const PIPELINES: &str = "apis/feedmill.dev/v1alpha1/datapipelines";
/// Where Deployments stand.
pub const DEPLOYMENTS: &str = "apis/apps/v1/deployments";
/// Where former templates stand.
pub const REVISIONS: &str = "apis/apps/v1/controllerrevisions";
/// Where ConfigMaps stand.
pub const MAPS: &str = "api/v1/configmaps";
/// Where accounts stand.
pub const ACCOUNTS: &str = "api/v1/serviceaccounts";
/// Where disruption budgets stand.
pub const BUDGETS: &str = "apis/policy/v1/poddisruptionbudgets";
/// Where Services stand.
pub const SERVICES: &str = "api/v1/services";
/// Where pods stand.
pub const PODS: &str = "api/v1/pods";

/// A pipeline as the API server stores it: defaults filled in.
pub fn pipeline(name: &str, spec: &Value) -> Value {
    let mut whole = json!({
        "apiVersion": "feedmill.dev/v1alpha1",
        "kind": "DataPipeline",
        "metadata": {"name": name, "namespace": NAMESPACE, "generation": 1, "uid": format!("uid-of-{name}")},
        "spec": {
            "streams": [{"name": "train", "datasets": [{"name": "a", "uri": "s3://b/k"}]}],
            "processor": {"uri": "s3://b/p/"},
            "worker": {"image": "worker:1"},
        },
    });
    merge(&mut whole["spec"], spec);
    let typed: DataPipeline = serde_json::from_value(whole).unwrap();
    serde_json::to_value(typed).unwrap()
}
