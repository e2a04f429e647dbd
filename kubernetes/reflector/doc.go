// Package reflector lists and watches one resource of an API server and decodes what the
// server sends. It keeps no objects: a [Handler] receives each as it arrives. It knows
// nothing of DNS.
//
//	API server ── Connection ── list or watch ── decoder ──▶ Handler
//
// # From a list to a watch
//
// A [Reflector] requests a watch with the initial events (a streamed list). A bookmark ends
// the list, and the same stream continues as the watch. If Unstreamed is set, it lists by a request of its own: the
// server passes all objects of the resource through the filter of a streamed list, but finds those of a namespace or
// a node by a key, and it compresses a list as a whole. It does so from then on, too, if the server rejects the
// streamed list, and alternates between the two if the server stays silent, as one that doesn't know streamed lists
// does. The watch then starts at the list's resourceVersion.
//
// A list is one request if the objects can be sent in protobuf, which is decoded as it arrives. Objects that exist in
// JSON alone, such as custom resources, are listed in pages of 100, each of which is in memory as a whole, and so are
// others if the server sends a list of more than 64 MiB in JSON.
//
// A watch asks for a random duration of 5 to 10 minutes. When it ends, or breaks, the next
// one resumes from the last resourceVersion that an object or a bookmark had. Only if the
// server no longer knows that version, or rejects the request, does the reflector list
// again. The handler learns at the end of a list, and never before, that other objects no
// longer exist. A watch that delivers nothing for 3 minutes, not even a bookmark, is
// abandoned, and a list follows: a server whose data were restored from a backup accepts a
// watch from a version that it does not have yet, and is silent. After lists that find
// nothing wrong, such lists become rarer until a bookmark arrives.
//
// A [History] compares the versions of lists with what was seen before them. When one is
// lower, every reflector of the server lists again, the one that found it first too: the
// handler may have ignored objects because of their low versions.
//
// A reflector can begin with a watch from a saved [Position]. [Reflector.Verify] tells before whether the server has
// been there.
//
// After a failure the reflector waits as [Backoff] says. The first list after an expired
// version is not delayed by earlier failures. If the API server can't be reached, one of its
// reflectors tries again every 3 to 6 s at least. As soon as a request of any of them succeeds, all try within a second.
//
// # Decoding
//
// Requests accept protobuf and JSON. Objects are decoded one at a time, with the generated
// code for protobuf or encoding/json. EndpointSlices in protobuf, most of a cluster's
// changes, are decoded into one set of buffers that the next one reuses. They have name,
// namespace, resourceVersion, labels, annotations, the address type, ports without the
// appProtocol, and endpoints without the deprecated topology; of an endpoint's targetRef
// only kind, namespace and name.
//
// An event, or an item of a list, may have 8 MiB, and a page in JSON 64 MiB. Buffers grow with the data received, not with
// an announced length. An event that is longer, has an unexpected type or can't be decoded
// is logged and skipped, and so is an item of a list. Data that can't be split into events ends the watch. A longer
// page fails the list.
//
// # Connections
//
// The clients of a [Connection] share one HTTP/2 connection, whose flow control bounds what
// the server sends ahead of the handlers: 2 MiB in all and 512 KiB for one stream. When the
// server rejects the credentials, or its certificate can't be verified, the files of
// credentials are read again and requests move to a new connection.
//
// # Errors and outages
//
// No error ends a reflector; only its context does. An [OutageLog], which the reflectors of
// one API server share, logs an outage at its start, once a minute, and at its end. A
// request that the server rejects, for instance for missing RBAC rules, is an outage of its
// own resource; all other failures are one outage of the server. A connection that breaks
// once, or a version that expires, is not logged if the next request succeeds.
package reflector
