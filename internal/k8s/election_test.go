package k8s

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// world is an API server with one Lease, on virtual time, and the processes that use it. Other objects have no
// resource version there: only the fence refuses a write.
type world struct {
	t *testing.T
	// slowness returns how long a request takes until it lands, and then until its answer arrives.
	slowness func(write bool) (landing, answering time.Duration)
	// between is how long a leader takes from a decision to its write, and from that to the next decision.
	between func() (writing, pausing time.Duration)

	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	away    bool
	// deaf: the Lease cannot be read or written.
	deaf bool
	// missed is what most speakers say of the leader's node.
	missed bool
	// writes and takes are what landed: writes of leaders, and times that the Lease got another holder.
	writes, takes []landed
	// refused counts writes that did not land.
	refused int
}

type landed struct {
	by string
	at time.Time
}

func newWorld(t *testing.T) *world {
	return &world{
		t:        t,
		slowness: func(bool) (time.Duration, time.Duration) { return time.Millisecond, time.Millisecond },
		between:  func() (time.Duration, time.Duration) { return 0, 20 * time.Millisecond },
	}
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// process is a controller in the world.
type process struct {
	world   *world
	name    string
	cluster *Cluster
	cancel  context.CancelFunc
	ended   chan error

	mu sync.Mutex
	// until is when it moves on.
	until time.Time
	died  bool
}

// start starts a process that wants to lead, and writes all the time while it does.
func (w *world) start(name string) *process {
	p := &process{world: w, name: name, ended: make(chan error, 1)}
	clients, err := ClientsFor(&rest.Config{Host: "http://api", Transport: p}, p.name)
	must(w.t, err)
	p.cluster = &Cluster{clients: clients, config: Config{Log: slog.New(slog.DiscardHandler), Namespace: "ns"}}
	ctx, cancel := context.WithCancel(w.t.Context())
	p.cancel = cancel
	c := Candidate{Identity: p.name + "_1", Node: "on-" + p.name, Lead: p.lead, Missed: func(string) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.missed
	}}
	go func() {
		p.ended <- p.cluster.Lead(ctx, c)
		close(p.ended)
	}()
	return p
}

func (p *process) lead(ctx context.Context) error {
	for ctx.Err() == nil {
		writing, pausing := p.world.between()
		sleep(context.WithoutCancel(ctx), writing)
		p.standStill()
		_, err := p.cluster.clients.kube.services("default").Patch(ctx, "web", types.MergePatchType, []byte("{}"),
			metav1.PatchOptions{})
		if err != nil {
			p.world.set(func() { p.world.refused++ })
		}
		sleep(ctx, pausing)
	}
	return nil
}

// stop stops all of the process for a while, like SIGSTOP. Its timers go on, and have fired when it moves on.
func (p *process) stop(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Now().Add(d)
}

func (p *process) standStill() {
	for {
		p.mu.Lock()
		wait := time.Until(p.until)
		p.mu.Unlock()
		if wait <= 0 {
			return
		}
		sleep(context.Background(), wait)
	}
}

// powerOff ends the process without a word: the API server goes on with what it was sent.
func (p *process) powerOff() {
	p.mu.Lock()
	p.died = true
	p.mu.Unlock()
	p.cancel()
}

func (p *process) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.died
}

// RoundTrip is the network between the process and the API server.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	p.standStill()
	if err := errors.Join(r.Context().Err(), p.unreachable()); err != nil {
		return nil, err
	}
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	answers := make(chan *http.Response, 1)
	go p.serve(r, body, answers)
	select {
	case <-r.Context().Done():
	case a := <-answers:
		p.standStill()
		if err := errors.Join(r.Context().Err(), p.unreachable()); err == nil {
			return a, nil
		}
	}
	p.standStill()
	return nil, errors.Join(r.Context().Err(), p.unreachable())
}

func (p *process) unreachable() error {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if p.world.away || p.dead() {
		return errors.New("connection refused")
	}
	return nil
}

// serve lands a request, unless its client gave up or its time was over landTime before.
func (p *process) serve(r *http.Request, body []byte, answers chan<- *http.Response) {
	p.world.mu.Lock()
	landing, answering := p.world.slowness(r.Method == http.MethodPatch)
	p.world.mu.Unlock()
	over := time.Now().Add(time.Hour)
	if d, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil {
		over = time.Now().Add(d)
	}
	stop := context.AfterFunc(r.Context(), func() {
		p.world.mu.Lock()
		defer p.world.mu.Unlock()
		at := time.Now()
		if !p.dead() && at.Before(over) {
			over = at
		}
	})
	defer stop()
	sleep(context.Background(), landing)
	p.world.mu.Lock()
	if !time.Now().Before(over.Add(landTime)) {
		p.world.mu.Unlock()
		answers <- failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
		return
	}
	answer := p.world.land(p.name, r, body)
	p.world.mu.Unlock()
	sleep(context.Background(), answering)
	answers <- answer
}

// land does what a request asks for. mu is held.
func (w *world) land(by string, r *http.Request, body []byte) *http.Response {
	if r.Method == http.MethodPatch {
		w.writes = append(w.writes, landed{by, time.Now()})
		if w.lease != nil && *w.lease.Spec.HolderIdentity != by+"_1_on-"+by {
			w.t.Errorf("a write of %s landed while the Lease is %q's", by, *w.lease.Spec.HolderIdentity)
		}
		return answer(http.StatusOK, &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}})
	}
	if w.deaf {
		return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError)
	}
	if r.Method == http.MethodGet {
		if w.lease == nil {
			return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
		}
		return answer(http.StatusOK, w.lease)
	}
	lease := &coordinationv1.Lease{}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, lease); err != nil {
		w.t.Error(err)
	}
	created := r.Method == http.MethodPost
	if created != (w.lease == nil) || !created && lease.ResourceVersion != w.lease.ResourceVersion {
		return failure(http.StatusConflict, metav1.StatusReasonConflict)
	}
	if holder := *lease.Spec.HolderIdentity; holder != "" && (created || holder != *w.lease.Spec.HolderIdentity) {
		w.takes = append(w.takes, landed{by, time.Now()})
	}
	w.version++
	lease.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	lease.ResourceVersion = strconv.Itoa(w.version)
	w.lease = lease
	return answer(http.StatusOK, lease)
}

func failure(code int, reason metav1.StatusReason) *http.Response {
	return answer(code,
		&metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason,
			Code: int32(code),
		})
}

func answer(code int, o any) *http.Response {
	body, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)),
	}
}

// lastWrite returns when a process wrote last, and firstWrite when first after a time.
func (w *world) lastWrite(by string) (last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.writes {
		if l.by == by {
			last = l.at
		}
	}
	return last
}

func (w *world) firstWrite(by string, after time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.writes {
		if l.by == by && l.at.After(after) {
			return l.at
		}
	}
	return time.Time{}
}

// end ends processes in good order.
func (w *world) end(processes ...*process) {
	for _, p := range processes {
		p.cancel()
	}
	for _, p := range processes {
		<-p.ended
	}
}
