package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Protocols of a probe.
const (
	TCP = "tcp" // HTTP GET on a new connection
	UDP = "udp" // one datagram and its answer
	// SCTP sends one INIT and does not wait for an answer: kernels without SCTP cannot answer.
	SCTP = "sctp"
)

// Answer is the echo application's description of itself and of its client.
type Answer struct {
	Pod    string `json:"pod"`
	Node   string `json:"node"`
	Client string `json:"client"`
	// Port is the client's port, if a host outside of the cluster answers.
	Port uint16 `json:"port,omitempty"`
	// Via is who connected where a PROXY protocol header named the client, To the client's destination in the header.
	Via string `json:"via,omitempty"`
	To  string `json:"to,omitempty"`
	// Forwarded are X-Forwarded-For, -Proto and -Port, if the first came.
	Forwarded []string `json:"forwarded,omitempty"`
}

// Result is one probe.
type Result struct {
	Start    time.Time     `json:"start"`
	Duration time.Duration `json:"duration"`
	OK       bool          `json:"ok"`
	Error    string        `json:"error,omitempty"`
	Answer   Answer        `json:"answer"`
}

// End is the time of the answer or of the timeout.
func (r Result) End() time.Time { return r.Start.Add(r.Duration) }

// Config is the configuration of Run.
type Config struct {
	Protocol string
	// Target is the address and the port to probe.
	Target string
	// Every is the time between the starts of two probes.
	Every time.Duration
	// Timeout of each probe.
	Timeout time.Duration
	// Count of probes; 0 means until the context ends.
	Count int
	// UntilOK ends the series after the first good probe.
	UntilOK bool
	// Forged is sent ahead of each HTTP request.
	Forged string
}

// asker makes one probe.
type asker func(ctx context.Context) (Answer, error)

func (c Config) asker() (asker, error) {
	switch c.Protocol {
	case TCP:
		return func(ctx context.Context) (Answer, error) { return askHTTP(ctx, c.Target, c.Forged) }, nil
	case UDP:
		return func(ctx context.Context) (Answer, error) { return askUDP(ctx, c.Target) }, nil
	case SCTP:
		return func(context.Context) (Answer, error) { return Answer{}, sendInit(c.Target) }, nil
	}
	return nil, fmt.Errorf("unknown protocol %q: want %s, %s or %s", c.Protocol, TCP, UDP, SCTP)
}

// Run sends probes and passes each result to report, one at a time, in the order in
// which they end. It returns when all started probes have ended.
func Run(ctx context.Context, c Config, report func(Result)) error {
	ask, err := c.asker()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	started, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	running := &clock{part: c.Timeout / parts}
	go running.run(started)
	var probes sync.WaitGroup
	var mu sync.Mutex
	one := func() {
		r := measure(started, ask, running)
		mu.Lock()
		defer mu.Unlock()
		if c.UntilOK && ctx.Err() != nil {
			return
		}
		report(r)
		if c.UntilOK && r.OK {
			stop()
		}
	}
	pace := time.NewTicker(c.Every)
	defer pace.Stop()
	for n := 1; ; n++ {
		probes.Go(one)
		if n == c.Count {
			break
		}
		select {
		case <-pace.C:
			continue
		case <-ctx.Done():
		}
		break
	}
	if !c.UntilOK || c.Count > 0 {
		probes.Wait()
	}
	return nil
}

// parts of a timeout that a clock counts.
const parts = 20

// clock counts the time in which this process runs. A time in which it does not, because others want the cores, counts
// as one part at most.
type clock struct {
	part  time.Duration
	count atomic.Int64
}

// run counts until the context ends.
func (c *clock) run(ctx context.Context) {
	ticker := time.NewTicker(c.part) // it drops ticks that are not taken
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.count.Add(1)
		case <-ctx.Done():
			return
		}
	}
}

// timeout calls late after all parts, unless the context ends before.
func (c *clock) timeout(ctx context.Context, late func()) {
	for end := c.count.Load() + parts; ; {
		left := end - c.count.Load()
		if left <= 0 {
			late()
			return
		}
		select {
		case <-time.After(time.Duration(left) * c.part):
		case <-ctx.Done():
			return
		}
	}
}

// measure makes one probe.
func measure(ctx context.Context, ask asker, c *clock) Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go c.timeout(ctx, cancel)
	start := time.Now()
	answer, err := ask(ctx)
	r := Result{Start: start, Duration: time.Since(start), OK: err == nil, Answer: answer}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// askHTTP sends a request on a new connection, and closes the connection
// first. If the server closed first, the pod would keep each connection in TIME_WAIT for a
// minute (RFC 9293 section 3.6). The node's masquerading reuses ports sooner, so a few of
// 10,000 probes would meet an old connection of the same ports in the pod.
func askHTTP(ctx context.Context, target, forged string) (answer Answer, err error) {
	err = converse(ctx, "tcp", target, func(conn net.Conn) (err error) {
		answer, err = get(conn, bufio.NewReader(conn), target, forged)
		return err
	})
	return answer, err
}

// converse opens a connection, and closes it afterwards. The end of the context ends both.
func converse(ctx context.Context, network, target string, talk func(net.Conn) error) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, target)
	if err != nil && ctx.Err() != nil {
		return errors.New("no connection in time")
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if repeated(conn) {
		return errors.New("the first SYN or its answer was lost")
	}
	err = talk(conn)
	if err != nil && ctx.Err() != nil {
		return errors.New("no answer in time")
	}
	return err
}

// repeated reports whether the kernel had to repeat the SYN of a TCP connection, which it does after a second (RFC 6298
// section 2): then the connection succeeded in spite of an outage.
func repeated(conn net.Conn) (yes bool) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false // it is closed: talk finds that out
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		yes = err == nil && info.Total_retrans > 0
	})
	return yes
}

// get requests an answer on an open connection.
func get(conn net.Conn, reader *bufio.Reader, target, forged string) (Answer, error) {
	if _, err := io.WriteString(conn, forged+"GET / HTTP/1.1\r\nHost: "+target+"\r\n\r\n"); err != nil {
		return Answer{}, err
	}
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		return Answer{}, err
	}
	return read(resp)
}

func read(resp *http.Response) (Answer, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return Answer{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return Answer{}, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return parse(body)
}

func askUDP(ctx context.Context, target string) (answer Answer, err error) {
	err = converse(ctx, "udp", target, func(conn net.Conn) error {
		if _, err := conn.Write([]byte("?")); err != nil {
			return err
		}
		buf := make([]byte, 1<<16)
		n, err := conn.Read(buf)
		if err == nil {
			answer, err = parse(buf[:n])
		}
		return err
	})
	return answer, err
}

func parse(b []byte) (Answer, error) {
	var a Answer
	if err := json.Unmarshal(b, &a); err != nil {
		return Answer{}, fmt.Errorf("read answer %q: %w", b, err)
	}
	return a, nil
}
