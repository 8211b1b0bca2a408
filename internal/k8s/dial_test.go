package k8s

import (
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

// TestServerLosesPower: a watch that waits, and a request that was sent, end soon after the API server's machine fell silent.
func TestServerLosesPower(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		ns := nstest.Self(t)
		ns.SetUp("lo")
		arrived := make(chan struct{}, 2)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			arrived <- struct{}{}
			<-r.Context().Done()
		}))
		server.EnableHTTP2 = true
		server.StartTLS()
		t.Cleanup(server.CloseClientConnections)
		clients, err := ClientsFor(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "test")
		if err != nil {
			t.Fatal(err)
		}
		w, err := clients.kube.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		<-arrived
		port := server.Listener.Addr().(*net.TCPAddr).Port
		ns.Output("nft", "add table inet off; add chain inet off in { type filter hook input priority 0; }; add rule inet off in tcp dport "+strconv.Itoa(port)+
			" drop")
		answered := make(chan error, 1)
		go func() {
			_, err := clients.kube.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
			answered <- err
		}()
		deadline := time.After(3 * deadTime)
		select {
		case event, open := <-w.ResultChan():
			if open {
				t.Fatalf("an Event of nobody: %v", event)
			}
		case <-deadline:
			t.Fatal("the watch still stands")
		}
		select {
		case err := <-answered:
			if err == nil {
				t.Fatal("answered by nobody")
			}
		case <-deadline:
			t.Fatal("the request still waits")
		}
	})
}
