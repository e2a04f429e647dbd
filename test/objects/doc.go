// Package objects asks CoreDNS and the agent, in each scope, about objects of a real API server.
//
// Each file in testdata is a case: Corefile lines, objects, and queries with their answers:
//
//	# what the case shows
//	OPTIONS
//	lines of the kubernetes directive
//	BLOCK
//	lines of the server block; UPSTREAM is a server with an address for every name, BROKEN one that fails
//	OBJECTS
//	manifests, which may have a status; with the annotation test/delete: "yes" the object is then deleted, so that
//	one with a finalizer is terminating; with test/refused: "TEXT" the API server may refuse it with that text
//	QUERIES
//	NAME TYPE = RCODE DATA, DATA
//	  CoreDNS: RCODE DATA | the reason of the difference, which a page of the reference has
//
// Names without a dot at the end are below cluster.local. The data of records of another type than the query's follow
// their type. The answer of a zone transfer is its records but SOA, with owners. All cases share an API server, and one
// CoreDNS and two agents with a server block for each case.
//
// The short form runs the newest release of Kubernetes, the long form each of [peer.Releases].
package objects
