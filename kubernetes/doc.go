// Package kubernetes answers the cluster zone: the names of Services, endpoints and pods,
// from a view of the cluster that it keeps up to date.
//
// # From the API server to an answer
//
//	API server ──▶ reflector ──▶ handler ──▶ index ──▶ Zone.Answer ──▶ reply
//	                   ▲                       │
//	             sliceManager ◀── slices of a Service are needed (scope.go)
//
// A [View] is one cluster as the DNS of one node needs it: all Services and Namespaces (of
// the latter only the metadata), the pods of the node, and the EndpointSlices of the
// Services in use. Slices are most of a cluster's changes, and a node's pods use few of
// them.
//
// A reflector (package reflector) lists and watches a resource. Each object goes to its
// handler as it arrives, becomes a few packed records and is not kept. Nothing is removed
// before a new list is complete. In place of an API server, manifest files can feed the
// handlers.
//
// The index has one immutable service value for each name, found by the wire bytes of its
// two labels: a query takes them out of its qname, looks them up under a read lock, and
// needs no lock while it writes the answer. Events may arrive in any order. Slices that
// precede their Service wait in an orphan value under the same key, and every event
// publishes a new value made from all that is known.
//
// A [Zone] answers the names of one `kubernetes` directive from a view, an [External]
// those of a `k8s_external` directive. They split the qname into labels, find its node in
// the DNS tree (lookup.go), and write the node's records (answer.go) or a negative answer.
// The [Outcome] tells the server whether the reply is complete. Services of other clusters
// (`multicluster`) are a second index of the same records.
//
// # Which EndpointSlices are in view
//
// The sliceManager starts and stops the sources of slices. There are three levels: sources
// for the names of the Services in use (service_set.go), and one for each namespace whose
// pods' reverse names are; if there are too many, one source for the cluster's
// slices with the label of headless Services and one for those that have neither that label
// nor that of the slice controller, plus sources for namespaces where these are not
// sufficient; or one source for all slices. When the level changes, the old sources
// stay until the new ones are complete. If two sources deliver the same slice, its
// resourceVersion decides: outdated events are ignored, and a slice that another source has
// seen deleted does not come back.
//
// Versions mean nothing after the API server's data were set back (reflector.History): all of
// them are forgotten, and those of a source count again when it begins a list. Those of a saved
// view count only if it is resumed.
//
// The slice controller labels its slices of headless Services with a selector. Slices made by
// hand or mirrored from Endpoints need not have either label, or may have one by mistake. At the
// default level no label is asked for. At the wide level, namespaces with Services without a
// selector are watched as a whole from the start; those with a Service none of whose slices has
// the label, when it is first queried.
//
// Each service value says whether all its slices are in view. The flag and the slices are
// in the same immutable value, so that no query sees one without the other. What is not in
// view is [Incomplete], never guessed. [Zone.Await] waits for it.
//
// [View.Endpoints] returns the ready endpoints of a Service for
// `forward . k8s:NAMESPACE/NAME`, the nearest first and at most 16, and a channel that is
// closed when they change. It is also closed each sixteenth of `scope_idle`: a caller that
// asks again keeps the Service in view.
//
// # The order of addresses
//
// The location of each endpoint, relative to the node, is one byte that is set when its
// slice arrives (topology.go). The addresses of a headless Service are sorted by distance
// when they change; an answer copies them and shuffles them within each distance. The
// node's topology zone is requested from the API server at the same time as the first
// lists, which don't wait for it. If it arrives later, the slices are listed once more.
//
// # The cost of an answer
//
// The cost does not grow with the number of objects that tenants create. Each object that
// an answer looks at is a step of a [Budget]; an answer that takes more than 1,024 steps is
// [OverBudget], and a worker makes it without a budget. All names that one query leads to
// share the budget. Lists are read only as far as the reply can hold records. The slices of
// an address are kept in order (index_query.go), so that a change costs a search and not a
// copy; answers read them 16 at a time (index_query.go), so that the lock is held for a
// microsecond. The addresses of a large headless Service are merged for the first answer
// after a change (topology.go), without the lock.
//
// # Copies of answers
//
// Answers may be copied, for instance for the kernel path. [Options.Epochs]
// has counters that the index bumps under its lock before each visible change; [Zone.Mark]
// returns those that an answer depends on (epochs.go).
//
// # The saved view
//
// With `save`, the records are written to a file from time to time and at the end, with a
// checksum, and a start loads them. The file also has the position of each reflector (its
// resourceVersion, and the versions of the newest objects), the resourceVersions of slices,
// and what else handlers keep of objects: a saved view is what a list at these versions gives.
// So a start goes on with a plain watch (resume.go), once reflector.Verify has found that the
// API server's data have been there. Otherwise the records are valid until lists replace
// them. Pods are always listed: what they are observed for is not saved. The file is read like untrusted input: only if nobody but the agent's user can
// have written it, in bounded pieces, and each record is checked for what a handler can
// make of an object. One invalid record rejects the whole file.
//
// # Outages
//
// While the API server is away, or the manifests are unreadable, the view keeps what it
// knows and retries. All its sources log to one reflector.OutageLog.
//
// # Why this is one package
//
// An answer reads the fields of the records while it is written, and so do transfers, saved views and what is said about a
// name that does not exist. An index in a package of its own would export some 200 names for them.
package kubernetes
