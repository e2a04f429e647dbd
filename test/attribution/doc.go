// Package attribution compares what an agent says about its clients with what the clients have
// asked. Clients in network namespaces ask known numbers of known names while a scripted API server shows
// that pods come, end, and reuse addresses. Each query must be counted once, for its address, and
// never for another pod than the one that has sent it.
package attribution
