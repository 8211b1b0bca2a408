package k8s

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// TestMayHaveLanded: only an answer of the API server's that refuses a write proves that it was not carried out.
func TestMayHaveLanded(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"none":              {nil, false},
		"conflict":          {apierrors.NewConflict(services, "web", nil), false},
		"invalid":           {apierrors.NewInvalid(schema.GroupKind{}, "web", nil), false},
		"forbidden":         {apierrors.NewForbidden(services, "web", nil), false},
		"too many requests": {apierrors.NewTooManyRequests("", 1), false},
		"internal":          {apierrors.NewInternalError(errors.New("webhook")), true},
		"time-out":          {apierrors.NewTimeoutError("", 0), true},
		"a proxy's": {
			apierrors.NewGenericServerResponse(http.StatusBadGateway, "patch", services, "web", "", 0, true), true,
		},
		"the deadline":     {context.DeadlineExceeded, true},
		"a reset":          {errors.New("connection reset by peer"), true},
		"the Lease lapsed": {errLeaseLapsed, false},
		"held back":        {&deferredError{}, false},
	} {
		err := tt.err
		if err != nil {
			err = fmt.Errorf("patch: %w", err)
		}
		if got := mayHaveLanded(err); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestSettle: a write without an answer is settled by a later version of its object or by its deletion, and by a read
// only when it can land no more.
func TestSettle(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{}, "web")
	for name, tt := range map[string]struct {
		shown   string
		deleted bool
		wait    time.Duration
		read    string
		err     error
		open    bool
		creates bool
	}{
		"nothing is known":              {shown: "5", open: true, read: "5"},
		"the watch shows it":            {shown: "6"},
		"the watch is far behind":       {shown: "4", open: true, read: "6"},
		"deleted":                       {deleted: true},
		"read as it was":                {shown: "5", wait: missedLeaseTime, read: "5"},
		"read as it is":                 {shown: "5", wait: missedLeaseTime, read: "6"},
		"read and gone":                 {shown: "5", wait: missedLeaseTime, err: notFound},
		"the read fails":                {shown: "5", wait: missedLeaseTime, err: context.DeadlineExceeded, open: true},
		"created, the watch shows it":   {creates: true, shown: "6"},
		"created, read":                 {creates: true, wait: missedLeaseTime, read: "6"},
		"not created":                   {creates: true, wait: missedLeaseTime, err: notFound},
		"not created, not settled yet":  {creates: true, err: notFound, open: true},
		"an earlier restored, and read": {shown: "5", wait: missedLeaseTime, read: "3"},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := newViewTest(t, "")
			wrote := versioned("web", "5")
			if tt.creates {
				wrote.ResourceVersion = ""
			}
			v.view.recordUnanswered(wrote, addresses("192.0.2.1"), context.DeadlineExceeded)
			if tt.shown != "" {
				v.watched("web", tt.shown)
			}
			if tt.deleted {
				v.view.dropWrites(versioned("web", "6"))
			}
			time.Sleep(tt.wait)
			v.view.List()
			again, err := v.view.read(t.Context(), func(context.Context, *corev1.Service) (*corev1.Service, error) {
				return versioned("web", tt.read), tt.err
			})
			if fails := tt.open && tt.wait > 0; (err != nil) != fails || tt.wait == 0 && tt.open && again.IsZero() {
				t.Errorf("%s: again %v, error %v", name, again, err)
			}
			claims := v.view.claims(nil, false)
			if (len(claims) == 1 && claims[0].Addresses[0] == addresses("192.0.2.1")[0]) != tt.open {
				t.Errorf("%s: %v", name, claims)
			}
		})
	}
}

// TestClaimsAdd: as long as it is not known what became of the first write, the addresses of all later ones count too.
func TestClaimsAdd(t *testing.T) {
	v := newViewTest(t, "5").view
	for _, a := range []string{"192.0.2.2", "192.0.2.1", "192.0.2.2"} {
		v.recordUnanswered(versioned("web", "5"), addresses(a), context.DeadlineExceeded)
	}
	claims := v.claims(nil, false)
	if len(claims) != 1 || !slices.Equal(claims[0].Addresses, addresses("192.0.2.1", "192.0.2.2")) {
		t.Errorf("%v", claims)
	}
}

// TestAttempts: the same write waits ever longer, another one of the object goes at once.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAttempts()
		tries := 0
		do := func(body string, err error) error {
			return a.attempt(t.Context(), "service ns/web", []byte(body), func() error { tries++; return err })
		}
		failed, start := errors.New("no"), time.Now()
		for time.Since(start) < time.Hour {
			at := fmt.Sprintf(`{"v":"1","at":"%s"}`, time.Now().UTC().Format(time.RFC3339))
			if wait := Wait(do(at, failed)); wait > 0 {
				time.Sleep(wait)
			}
		}
		if tries < 60 || tries > 75 {
			t.Errorf("%d tries in an hour", tries)
		}
		if err := do(`{"v":"2"}`, failed); !errors.Is(err, failed) {
			t.Errorf("another version: %v", err)
		}
		if wait := Wait(do(`{"v":"2"}`, failed)); wait != retryWait {
			t.Errorf("another version failed, and waits %v", wait)
		}
		time.Sleep(retryWait)
		must(t, do(`{"v":"2"}`, nil))
		if err := do(`{"v":"2"}`, errLeaseLapsed); !errors.Is(err, errLeaseLapsed) {
			t.Error(err)
		}
		if err := do(`{"v":"2"}`, nil); err != nil {
			t.Errorf("what was not sent is held back: %v", err)
		}
	})
}

// hanging returns clients of an API server that begins each answer and ends none. powerOff has its machine fall silent,
// by nft's table off.
func hanging(t *testing.T, arrived func()) (clients Clients, powerOff func() *nstest.NS) {
	t.Helper()
	ns := nstest.Self(t)
	ns.SetUp("lo")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		arrived()
		<-r.Context().Done()
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.CloseClientConnections)
	clients, err := ClientsFor(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
		"test")
	must(t, err)
	return clients, func() *nstest.NS {
		ns.Output("nft",
			"add table inet off; add chain inet off in { type filter hook input priority 0; }; add rule inet off in tcp dport "+
				strconv.Itoa(server.Listener.Addr().(*net.TCPAddr).Port)+" drop")
		return ns
	}
}

// TestServerLosesPower: a watch that waits, and a request that was sent, end soon after the API server's machine fell
// silent.
func TestServerLosesPower(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		arrived := make(chan struct{}, 2)
		clients, powerOff := hanging(t, func() { arrived <- struct{}{} })
		w, err := clients.kube.services("").Watch(t.Context(), metav1.ListOptions{})
		must(t, err)
		defer w.Stop()
		<-arrived
		powerOff()
		answered := make(chan error, 1)
		go func() {
			_, err := clients.kube.services("default").Get(t.Context(), "web", metav1.GetOptions{})
			answered <- err
		}()
		deadline := time.After(3 * deadTime)
		select {
		case event, open := <-w.ResultChan():
			if open {
				t.Fatalf("an Event without a source: %v", event)
			}
		case <-deadline:
			t.Fatal("the watch still stands")
		}
		select {
		case err := <-answered:
			if err == nil {
				t.Fatal("answered without an API server")
			}
		case <-deadline:
			t.Fatal("the request still waits")
		}
	})
}
