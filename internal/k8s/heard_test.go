package k8s

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestAPIAge: an API server that has nothing to tell is heard by its kernel's answers, and one that is unreachable is not.
func TestAPIAge(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		ns := nstest.Self(t)
		ns.SetUp("lo")
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		server.EnableHTTP2 = true
		server.StartTLS()
		t.Cleanup(server.CloseClientConnections)
		clients, err := ClientsFor(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "test")
		if err != nil {
			t.Fatal(err)
		}
		cluster := &Cluster{clients: clients}
		watch := func() bool {
			w, err := clients.kube.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false
			}
			t.Cleanup(w.Stop)
			return true
		}
		if !watch() {
			t.Fatal("no watch")
		}
		quiet := time.Now()
		nstest.Until(t, 30*time.Second, "heard, though it has sent nothing for long", func() bool {
			return time.Since(quiet) > 2*deadTime && cluster.APIAge() < deadTime
		})
		port := server.Listener.Addr().(*net.TCPAddr).Port
		ns.Output("nft", "add table inet off; add chain inet off in { type filter hook input priority 0; }; add rule inet off in tcp dport "+strconv.Itoa(port)+
			" drop")
		nstest.Until(t, 30*time.Second, "not heard", func() bool { return cluster.APIAge() > 2*deadTime })
		ns.Output("nft", "delete table inet off")
		nstest.Until(t, 30*time.Second, "heard again", func() bool { return watch() && cluster.APIAge() < deadTime })
	})
}

// TestAPIHangs: the kernel accepts and acknowledges for an API server that hangs. It counts as heard until client-go should have
// had an answer to a ping.
func TestAPIHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	h := newHearing()
	dialed, err := h.over(dial)(context.Background(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	h.last = time.Now().Add(-time.Hour)
	c := dialed.(*heardConn)
	if age := h.age(); age < time.Hour {
		t.Errorf("the API server sent nothing, and was heard %v ago", age)
	}
	for ago, want := range map[time.Duration]bool{pingTime - 5*time.Second: true, pingTime: false} {
		at := time.Now().Add(-ago)
		c.read.Store(&at)
		h.last = time.Now().Add(-time.Hour)
		if heard := h.age() < ago; heard != want {
			t.Errorf("the API server sent nothing for %v; heard: %v", ago, heard)
		}
	}
}
