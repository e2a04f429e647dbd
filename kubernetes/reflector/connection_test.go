package reflector

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/test/poll"
)

// TestConnectOnce: requests that come at the same time open one connection, at the start and after it breaks. They don't wait
// for each other's responses.
func TestConnectOnce(t *testing.T) {
	const requests = 8
	var opened atomic.Int32
	var together sync.WaitGroup
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		together.Done()
		together.Wait()
	}))
	s.EnableHTTP2 = true
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.StartTLS()
	defer s.Close()
	c, err := Connect(&rest.Config{Host: s.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	client, err := c.Client(schema.GroupVersion{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	for round := range int32(3) {
		together.Add(requests)
		var wg sync.WaitGroup
		for range requests {
			wg.Go(func() {
				if err := client.Get().AbsPath("/").Do(t.Context()).Error(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := opened.Load(); n != round+1 {
			t.Fatalf("%d connections were opened, want %d", n, round+1)
		}
		s.CloseClientConnections()
		poll.Until(t, "the end of the connection", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.open) == 0
		})
	}
}
