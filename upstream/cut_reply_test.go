// Inside the package: the tests share the scripted server of this package.

package upstream

import (
	"slices"
	"testing"
)

// cutOver answers with 9 records, of which the last is cut over the protocols.
func cutOver(protocols ...string) script {
	return func(r request) {
		b := r.pack(r.answer(9))
		if slices.Contains(protocols, r.over) {
			b = b[:len(b)-3]
		}
		r.send(b)
	}
}

// cutBehindQuestion answers with 9 records, but over UDP without them.
func cutBehindQuestion(r request) {
	b := r.pack(r.answer(9))
	if r.over == "udp" {
		b = b[:len(b)-9*16]
	}
	r.send(b)
}

// TestCutReplyAndNextServer: where a server's replies over UDP are cut and TCP fails, the next server is asked before the client
// gets a truncated reply.
func TestCutReplyAndNextServer(t *testing.T) {
	for name, overTCP := range map[string]script{
		"TCP closes":        func(r request) { r.conn.Close() },
		"cut over TCP, too": cutOver("tcp"),
	} {
		t.Run(name, func(t *testing.T) {
			cut := startFake(t, func(r request) {
				if r.over == "tcp" {
					overTCP(r)
					return
				}
				cutOver("udp")(r)
			})
			good := startFake(t, answerOK)
			if answer := mustExchange(t, newPool(t, longTimeout(cut, good)), 0); answer.Truncated || answer.Answers != 1 {
				t.Errorf("%d answers, truncated %t", answer.Answers, answer.Truncated)
			}
		})
	}
}
