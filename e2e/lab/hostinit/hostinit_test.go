package hostinit

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A gate opens at 200 and not before, whichever CA has signed the server's certificate.
func TestWaitGate(t *testing.T) {
	answers := []int{http.StatusForbidden, http.StatusInternalServerError, http.StatusOK}
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[asked])
		asked++
	}))
	waitGate(server.URL)
	server.Close()
	if asked != len(answers) {
		t.Errorf("gate opened after %d answers, want %d", asked, len(answers))
	}
	waitGate("")
}

func TestWaitGateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	open := make(chan struct{})
	go func() {
		waitGate(path)
		close(open)
	}()
	select {
	case <-open:
		t.Fatal("the gate is open without its file")
	case <-time.After(3 * gatePoll):
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-open
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spec.json")
	if err := os.WriteFile(path, []byte(`{"Hostname": "w1", "Services": [{"Name": "a", "Argv": ["/a"]}]}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(path)
	if err != nil || s.Hostname != "w1" || s.Services[0].Argv[0] != "/a" {
		t.Errorf("got %+v, %v", s, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("broken file: got %v, want an error that names it", err)
	}
}

func TestHasControllers(t *testing.T) {
	for _, tc := range []struct {
		controllers string
		want        bool
	}{
		{"cpuset cpu io memory hugetlb pids", true},
		{"hugetlb", false}, // a hybrid machine
		{"", false},
	} {
		if got := HasControllers(strings.Fields(tc.controllers)); got != tc.want {
			t.Errorf("%q: got %v", tc.controllers, got)
		}
	}
}
