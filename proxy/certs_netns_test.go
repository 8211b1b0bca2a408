package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	corev1 "k8s.io/api/core/v1"
)

// tlsPod is a pod whose agent takes pairs from the Secret shop/tls, which tell changes.
type tlsPod struct {
	*pod
	services []haproxy.Service
	tell     func(*corev1.Secret, error) error
}

func newTLSPod(t *testing.T, services ...haproxy.Service) *tlsPod {
	p := &tlsPod{pod: newPod(t), services: services}
	p.adopt(p.agent)
	return p
}

// adopt has an agent take its pairs so.
func (p *tlsPod) adopt(a *agent) {
	p.agent = a
	c := a.certificates
	c.kick, c.follow = func() {}, func(_ lb.Key, see func(*corev1.Secret, error) error) func() {
		p.tell = see
		return func() {}
	}
	p.agent.desired = func() haproxy.State {
		var asked []*lb.Service
		for i := range p.services {
			asked = append(asked, &lb.Service{Key: p.services[i].Key, Proxy: &p.services[i].Proxy})
		}
		p.agent.certified = c.resolve(asked, time.Now())
		p.state.Services = nil
		for _, s := range p.services {
			if s.Certificate = p.agent.certified.digests[s.Key]; s.Certificate != "" {
				p.state.Services = append(p.state.Services, s)
			}
		}
		return p.state
	}
	p.agent.desired()
}

// set has another version of the Secret, and waits until it is in force or reported.
func (p *tlsPod) set(o *corev1.Secret) {
	p.Helper()
	must(p, p.tell(o, nil))
	p.soon()
	p.apply()
}

// pairs are the files with keys.
func (p *tlsPod) pairs() (out []string) {
	files, _ := filepath.Glob(filepath.Join(p.agent.dir, "*", "*"))
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), "PRIVATE KEY") {
			if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
				p.Errorf("%s has the mode %v (%v)", f, info.Mode(), err)
			}
			out = append(out, filepath.Base(f))
		}
	}
	return out
}

// faults are what a speaker is told.
func (p *tlsPod) faults() map[string]lb.Reason {
	response, err := http.Get("http://" + p.engine.listen + "/frontends")
	must(p, err)
	defer response.Body.Close()
	var answer struct{ Faults map[string]lb.Reason }
	must(p, json.NewDecoder(response.Body).Decode(&answer))
	return answer.Faults
}

// handshake connects a client by TLS.
func (n *network) handshake(from, to string, change func(*tls.Config)) (*tls.Conn, error) {
	c, err := n.dial(from, to)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "web.example"}
	if change != nil {
		change(config)
	}
	out := tls.Client(c, config)
	if err := out.Handshake(); err != nil {
		c.Close()
		return nil, err
	}
	return out, nil
}

// name is the name in the certificate that a port shows.
func (n *network) name(to string) string {
	c, err := n.handshake("10.0.0.10", to, nil)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName
}

var ends = map[string]string{"10.0.0.10": "10.0.0.1", "fd00::10": "fd00::1"}

// TLS ends at the proxy, of both families: behind it is HTTP, asked in either version, or a header and the plain
// stream.
func TestTLS(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.headers("10.1.0.1:80")
		n.web("10.1.0.1:8080", forwarded)
		secret := func(s *haproxy.Service) { s.Secret = "tls" }
		p := newTLSPod(t,
			testService("web", 31001, secret, "10.1.0.1:8080"),
			testService("forwarded", 31002, func(s *haproxy.Service) { s.Secret, s.HTTP = "tls", true }, "10.1.0.1:8080"),
			testService("stream", 31003, func(s *haproxy.Service) { s.Secret, s.Header = "tls", 2 }, "10.1.0.1:80"))
		p.apply()
		if c, err := n.dial("10.0.0.10", "10.0.0.1:31001"); err == nil {
			c.Close()
			t.Error("without a pair the port is open")
		}
		p.set(goodSecret(t))
		if len(p.pairs()) != 1 {
			t.Errorf("the files %v have keys", p.pairs())
		}
		for from, to := range ends {
			for port, forwarded := range map[string]string{"31001": "[]", "31002": "[" + from + "]"} {
				for _, protocols := range [][]string{{"h2", "http/1.1"}, {"http/1.1"}} {
					transport := &http.Transport{ForceAttemptHTTP2: len(protocols) > 1,
						DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
							return n.handshake(from, net.JoinHostPort(to, port), func(c *tls.Config) { c.NextProtos = protocols })
						}}
					r, _ := http.NewRequest("GET", "https://web.example/", nil)
					r.Header.Set("X-Forwarded-Proto", "http") // what the client says of itself does not count
					answer, err := (&http.Client{Transport: transport}).Do(r)
					if err != nil {
						t.Fatalf("from %s to %s by %v: %v", from, port, protocols, err)
					}
					got, _ := io.ReadAll(answer.Body)
					answer.Body.Close()
					transport.CloseIdleConnections()
					if want := forwarded + " [https] [443]"; string(got) != want || answer.ProtoMajor != len(protocols) {
						t.Errorf("from %s to %s by %v: HTTP/%d %q, want %q", from, port, protocols, answer.ProtoMajor, got, want)
					}
				}
			}
			c, err := n.handshake(from, net.JoinHostPort(to, "31003"), func(c *tls.Config) {
				c.NextProtos = []string{"h2", "http/1.1"}
			})
			must(t, err)
			fmt.Fprintln(c, "hello")
			got, err := bufio.NewReader(c).ReadString('\n')
			destination := map[string]string{"10.0.0.10": "192.0.2.10:443", "fd00::10": "[2001:db8::10]:443"}[from]
			if want := fmt.Sprintf("v2 %v %s at 10.1.0.1:80\n", c.LocalAddr(), destination); err != nil || got != want ||
				c.ConnectionState().NegotiatedProtocol != "" {
				t.Errorf("from %s: %q by %q (%v), want %q", from, got, c.ConnectionState().NegotiatedProtocol, err, want)
			}
			c.Close()
			if c, err := n.handshake(from, net.JoinHostPort(to, "31001"),
				func(c *tls.Config) { c.MaxVersion = tls.VersionTLS11; c.MinVersion = tls.VersionTLS10 }); err == nil {
				c.Close()
				t.Error("TLS 1.1 is spoken")
			}
			// No port answers in plain text.
			for _, port := range []string{"31001", "31002", "31003"} {
				if answer, _, err := n.ask(from, net.JoinHostPort(to, port)); err == nil && !strings.HasPrefix(answer, "\x15") {
					t.Errorf("port %s answers %q", port, answer)
				}
			}
		}
	})
}

// A Secret changes under load without a failed connection, and a wrong pair changes nothing.
func TestRotation(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.headers("10.1.0.1:80")
		p := newTLSPod(t, testService("stream", 31001, func(s *haproxy.Service) {
			s.Secret, s.Header = "tls", 1
		}, "10.1.0.1:80"))
		named := func(name string) *corev1.Secret { return tlsSecret(t, name, 0, time.Hour, time.Hour) }
		p.set(named("v0"))
		n.underLoad(5, func(from string) (net.Conn, error) { return n.handshake(from, "10.0.0.1:31001", nil) }, func(i int) {
			p.set(named(fmt.Sprintf("v%d", i+1)))
			if got := n.name("10.0.0.1:31001"); got != fmt.Sprintf("v%d", i+1) {
				t.Errorf("rotation %d: the certificate is of %s", i+1, got)
			}
		})
		if files := p.pairs(); len(files) != 1 {
			t.Errorf("the files %v have keys", files)
		}
		// Another agent waits for the Secrets before it says what is wanted: the engine has the pair.
		again := newAgent(p.agent.log, p.agent.dir)
		again.cluster = p.agent.cluster
		again.program = p.agent.program
		again.engine = p.agent.engine
		again.bounds = p.agent.bounds
		last := p.agent.certificates.kept[p.services[0].Key]
		p.adopt(again)
		for range 3 {
			must(t, p.sync())
		}
		if got := n.name("10.0.0.1:31001"); got != "v5" || p.reloads("done") > 0 {
			t.Errorf("another agent makes the certificate %s, after %v reloads", got, p.reloads("done"))
		}
		p.set(&corev1.Secret{
			Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: last.text, corev1.TLSPrivateKeyKey: last.text},
		})
		reloads := p.reloads("done")
		weak, wrong := tlsSecret(t, "weak", 1024, time.Hour, time.Hour), named("wrong")
		wrong.Data[corev1.TLSPrivateKeyKey] = named("x").Data[corev1.TLSPrivateKeyKey]
		for want, o := range map[lb.Reason]*corev1.Secret{lb.SecretMissing: nil, lb.KeyWrong: wrong, lb.SecretWrong: weak} {
			p.set(o)
			nstest.Until(t, 10*time.Second, "the fault "+string(want), func() bool { return p.faults()["shop/stream"] == want })
			if got := n.name("10.0.0.1:31001"); got != "v5" || p.reloads("done") != reloads || p.reloads("refused") > 0 {
				t.Errorf("%s: the certificate is of %s, after %v reloads", want, got, p.reloads("done")-reloads)
			}
		}
		p.set(tlsSecret(t, "expired", 0, 2*time.Hour, -time.Hour))
		nstest.Until(t, 10*time.Second, "a fault", func() bool { return p.faults()["shop/stream"] == lb.CertificateExpired })
		if got := n.name("10.0.0.1:31001"); got != "expired" {
			t.Errorf("the certificate is of %s", got)
		}
		p.set(named("v6"))
		nstest.Until(t, 10*time.Second, "no fault", func() bool { return len(p.faults()) == 0 })
		// Without a Service no key stays.
		p.services = nil
		p.agent.served = nil // it would linger
		p.set(nil)
		if files := p.pairs(); len(files) > 0 {
			t.Errorf("the files %v have keys", files)
		}
	})
}

// TestStreams: ten connections with a hundred requests of HTTP/2 each, to a slow application, leave other Services of
// the namespace their connections, and their worker its life.
func TestStreams(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.2:80")
		release := make(chan struct{})
		var open, highest, denied atomic.Int64
		n.web("10.1.0.1:8080", func(http.ResponseWriter, *http.Request) {
			count := open.Add(1)
			for last := highest.Load(); count > last && !highest.CompareAndSwap(last, count); last = highest.Load() {
			}
			<-release
			open.Add(-1)
		})
		p := newTLSPod(t, testService("web", 31001, func(s *haproxy.Service) { s.Secret = "tls" }, "10.1.0.1:8080"))
		const connections, clients, streams = 200, 10, 100
		p.agent.engine.MaxConn = connections
		desired := p.agent.desired
		p.agent.desired = func() haproxy.State {
			p.state = desired()
			p.state.MaxConn = connections
			p.state.Services = append(p.state.Services, testService("other", 31002, nil, "10.1.0.2:80"))
			return p.state
		}
		p.set(goodSecret(t))
		held, pid := n.hold("10.0.0.21", "10.0.0.1:31002"), p.pid()

		var group sync.WaitGroup
		for c := range clients {
			client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
				DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
					return n.handshake(fmt.Sprintf("10.0.0.%d", 10+c), "10.0.0.1:31001", func(c *tls.Config) {
						c.NextProtos = []string{"h2"}
					})
				}}}
			for range streams {
				group.Go(func() {
					answer, err := client.Get("https://web.example/")
					if err != nil {
						return
					}
					if answer.StatusCode == http.StatusServiceUnavailable {
						denied.Add(1)
					}
					answer.Body.Close()
				})
			}
		}
		nstest.Until(t, 20*time.Second, "most requests are denied", func() bool { return denied.Load() > clients*streams/2 })
		if !lives(held) {
			t.Error("an open connection of another Service ended")
		}
		if _, _, err := n.ask("10.0.0.20", "10.0.0.1:31002"); err != nil {
			t.Error("another Service is not served:", err)
		}
		close(release)
		group.Wait()
		if highest.Load() > connections || p.pid() != pid {
			t.Errorf("%d requests were at the application at once, of %d; process %s after %s", highest.Load(), connections,
				p.pid(), pid)
		}
	})
}
