// Package server receives queries and sends replies, over UDP, TCP, TLS and HTTPS.
//
// # The way of a packet
//
// Each listening address has as many UDP sockets as the process may use cores, which share
// the port, and one TCP listener. A reader takes the packets that wait in its socket, up to
// a batch of 16, parses each in place, and walks the query path. What local data or the
// cache can answer is written to the reader's reply buffers and sent before the next read,
// without an allocation and without waking another thread. A query that has to wait is copied. If
// it only has to be forwarded, the reader sends the upstream's query after the replies of its
// batch, and answers it when the upstream's reply comes (pending_query.go): while it waits for packets it
// reads the upstream's UDP sockets, too (package pollset). Over other transports the goroutine that reads the reply
// answers the client. A goroutine of the worker pool takes over where more is to be done. [Limits.Waiting] limits
// how many queries wait. When all places are taken, the client that holds most loses the
// place of its query that has waited longest (package share). That query is answered at
// once, with an expired answer or SERVFAIL, and counted. Hits are answered as before.
//
// A [ListenerConfig] can select TLS or HTTPS instead of plain DNS. Such an address has a
// TCP listener with the same limits and no UDP sockets.
//
// # A waiting query over UDP
//
// A [pendingQuery] takes a turn before it is started (worker_turns.go). Clients take turns, and a reader forwards only a few queries
// before it looks for packets again, so hits do not wait for a flood of misses. It belongs to one of these at a time:
//
//	reader ──▶ hasTurn ──▶ started: parked at the upstream ──▶ replied by who reads the upstream's reply
//	   │          ▲ │         │ late, truncated or failed, or the place is lost
//	   └▶ queued ─┘ └─▶ a worker: runs the path again, or waits for the upstream ──▶ replied
//
// A large answer keeps its turn until it is made. A query that loses its place is resumed by a worker at once.
//
// # Buffer ownership
//
// A reader owns its packet and reply buffers and reuses them for the next batch. A waiting
// query owns copies of both until its reply is sent. Routes are immutable and are replaced
// as a whole.
//
// # UDP readers
//
// Package udp has the sockets, the ways in which a reader waits, and the shares of clients that flood a reader beyond
// what it can answer. A reader (udp_reader.go) keeps the replies that it sends most often, or copies them into the
// kernel (reply_sink.go). Each reader has its own counters, plain numbers under a lock that only a scrape shares.
//
// # Hand-over
//
// Another process may hold the same sockets (handover.go), so they are closed and never shut down.
//
// # TCP, TLS, HTTPS and gRPC
//
// A connection holds no buffers while it is idle (tcp_conn.go). One goroutine reads and
// answers; replies of waiting queries are written in the order in which they are ready
// (conn_writer.go). A TLS connection is the same tcpConn with a transport below crypto/tls
// whose reads never block (tls.go). HTTPS and gRPC are served by net/http behind the same listener
// (https.go, doh.go, grpc.go), which decides about admission, timeouts and eviction, and performs
// the TLS handshake.
package server
