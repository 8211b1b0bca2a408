package haproxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func addr(text string) netip.Addr         { return netip.MustParseAddr(text) }
func prefix(text string) netip.Prefix     { return netip.MustParsePrefix(text) }
func endpoint(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// engine has a directory of its own for each test.
func engine(directory string) Engine {
	return Engine{Directory: directory, Threads: 2, MaxConn: 8000, Files: 20000}
}

func settings() lb.Proxy {
	return lb.Proxy{Method: lb.RoundRobin, Client: 50 * time.Second, Member: 50 * time.Second, Connect: 5 * time.Second}
}

// crt stands for a pair's digest.
const crt = "0123456789abcdef0123456789abcdef"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newPair returns a certificate with its key.
func newPair(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"web.example"},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})) + string(pem.EncodeToMemory(&pem.Block{
		Type: "PRIVATE KEY", Bytes: der,
	}))
}

// world has a Service for each thing that a Service can ask for.
func world(directory string) State {
	tcp := settings()
	web := settings()
	hash := settings()
	pair := settings()
	six := settings()
	tls := settings()
	forwarded := settings()
	stream := settings()
	tls.Secret = "tls"
	forwarded.Secret = "tls"
	forwarded.HTTP = true
	stream.Secret = "tls"
	stream.Header = 2
	tcp.Header, tcp.Inspect = 2, time.Second
	tcp.Monitor = &lb.Monitor{Delay: 5 * time.Second, Timeout: 3 * time.Second, Rise: 1, Fall: 3}
	web.HTTP, web.Monitor, web.Method = true,
		&lb.Monitor{Delay: 10 * time.Second, Timeout: 5 * time.Second, Rise: 3, Fall: 3}, lb.LeastConnections
	hash.Method, hash.Header = lb.SourceIP, 1
	pair.Method, pair.HTTP = lb.SourceIPPort, true
	six.Header = 2
	both := []netip.Addr{addr("192.0.2.10"), addr("2001:db8::10")}
	return State{Engine: engine(directory), Internal: []netip.Prefix{
		prefix("10.244.0.0/24"), prefix("198.51.100.7/32"), prefix("fd00:10:244::/64"),
	},
		Services: []Service{
			{Key: lb.Key{Namespace: "shop", Name: "tcp"}, Addresses: both,
				Proxy: tcp, Ports: []Port{{Port: 80, Listen: 30080, Endpoints: []netip.AddrPort{
					endpoint("10.244.0.5:8080"), endpoint("10.244.1.6:8080")}}}},
			{Key: lb.Key{Namespace: "shop", Name: "web"}, Addresses: both, Proxy: web, Ports: []Port{
				{Port: 80, Listen: 30180, Endpoints: []netip.AddrPort{endpoint("[fd00:10:244::5]:8080")}},
				{Port: 8080, Listen: 30181}}},
			{Key: lb.Key{Namespace: "shop", Name: "hash"}, Addresses: both[:1],
				Proxy: hash, Ports: []Port{{Port: 25, Listen: 30025, Endpoints: []netip.AddrPort{
					endpoint("10.244.0.5:25"), endpoint("10.244.1.6:25")}}},
				Access: lb.Access{
					Restricted: true, Allow: []netip.Prefix{prefix("203.0.113.0/24"), prefix("::/0")},
					Deny: []netip.Prefix{prefix("203.0.113.9/32")},
				}},
			{Key: lb.Key{Namespace: "staging", Name: "pair"}, Addresses: both, Proxy: pair,
				Ports:  []Port{{Port: 80, Listen: 30280}},
				Access: lb.Access{Restricted: true, InternalAllowed: true}},
			{Key: lb.Key{Namespace: "staging", Name: "six"}, Addresses: both[1:], Proxy: six,
				Ports:  []Port{{Port: 80, Listen: 30380}},
				Access: lb.Access{Deny: []netip.Prefix{prefix("2001:db8:bad::/48"), prefix("192.0.2.0/24")}}},
			{Key: lb.Key{Namespace: "vault", Name: "forwarded"}, Addresses: both, Proxy: forwarded, Certificate: crt,
				Ports: []Port{{Port: 443, Listen: 30481}}},
			{Key: lb.Key{Namespace: "vault", Name: "stream"}, Addresses: both, Proxy: stream, Certificate: crt,
				Ports: []Port{{Port: 443, Listen: 30482}}},
			{Key: lb.Key{Namespace: "vault", Name: "tls"}, Addresses: both, Proxy: tls,
				Certificate: crt, Ports: []Port{{Port: 443, Listen: 30480},
					{Port: 8443, Listen: 30483}}},
		}}
}

// written writes what the configuration needs beside it, and returns its path.
func written(t *testing.T, s State) string {
	t.Helper()
	t.Setenv(SocketVariable, filepath.Join(s.Directory, "socket"))
	files := s.Lists()
	files[StatesFile], files[PairFile(crt)], files["haproxy.cfg"] = "1\n", newPair(t), s.Config().Text
	for file, text := range files {
		must(t, os.WriteFile(filepath.Join(s.Directory, file), []byte(text), 0o600))
	}
	return filepath.Join(s.Directory, "haproxy.cfg")
}

func TestConfig(t *testing.T) {
	c := world("/run/holdfast").Config()
	const golden = "testdata/world.cfg"
	if *update {
		must(t, os.WriteFile(golden, []byte(c.Text), 0o600))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if diff := cmp.Diff(string(want), c.Text); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	want2 := map[string]map[string]uint16{"shop/tcp": {"80": 30080}, "shop/web": {"80": 30180, "8080": 30181},
		"shop/hash":    {"25": 30025},
		"staging/pair": {"80": 30280}, "staging/six": {"80": 30380},
		"vault/forwarded": {"443": 30481}, "vault/stream": {"443": 30482}, "vault/tls": {"443": 30480, "8443": 30483}}
	if diff := cmp.Diff(want2, Frontends(world("").Config().Text)); diff != "" {
		t.Errorf("frontends: -want +got\n%s", diff)
	}
	// The grammar is about what the engine accepts.
	for line := range strings.Lines(c.Text) {
		if !grammar.MatchString(strings.TrimSuffix(line, "\n")) {
			t.Errorf("not within the grammar: %q", line)
		}
	}
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("HAProxy is not installed")
	}
	out, err := exec.Command("haproxy", "-c", "-q", "-f", written(t, world(t.TempDir()))).CombinedOutput()
	if err != nil || strings.Contains(string(out), "WARNING") {
		t.Errorf("the engine refuses the configuration, or warns of it: %v\n%s", err, out)
	}
}

// An endpoint does not change the hash; all else that a Service asks for does.
func TestHash(t *testing.T) {
	before := world("").Config()
	for name, change := range map[string]func(*Service){
		"header": func(s *Service) {
			s.Header = 1
		}, "mode": func(s *Service) { s.HTTP = true }, "method": func(s *Service) { s.Method = lb.SourceIP },
		"client": func(s *Service) {
			s.Client++
			s.Client += time.Second
		}, "member": func(s *Service) { s.Member += time.Second },
		"connect": func(s *Service) { s.Connect += time.Second }, "inspect": func(s *Service) { s.Inspect = 0 },
		"monitor": func(s *Service) { s.Monitor = nil }, "delay": func(s *Service) { s.Monitor.Delay += time.Second },
		"rise": func(s *Service) { s.Monitor.Rise++ }, "fall": func(s *Service) { s.Monitor.Fall++ },
		"timeout": func(s *Service) { s.Monitor.Timeout += time.Second },
		"address": func(s *Service) { s.Addresses = s.Addresses[:1] }, "port": func(s *Service) { s.Ports[0].Port++ },
		"listen": func(s *Service) { s.Ports[0].Listen++ }, "restricted": func(s *Service) { s.Restricted = true },
		"deny":        func(s *Service) { s.Deny = []netip.Prefix{prefix("192.0.2.0/24")} },
		"certificate": func(s *Service) { s.Secret, s.Certificate = "tls", crt },
	} {
		s := world("")
		change(&s.Services[0])
		if after := s.Config(); before.Hash == after.Hash {
			t.Errorf("%s: the hash stays", name)
		}
	}
	s := world("")
	s.Services[0].Ports[0].Endpoints = append(s.Services[0].Ports[0].Endpoints, endpoint("10.244.1.7:8080"))
	if after := s.Config(); after.Hash != before.Hash || after.Text == before.Text {
		t.Error("an endpoint changes the hash, or not the text")
	}
}

func TestMaxConn(t *testing.T) {
	s := world("")
	s.Files = 5000
	if got := s.maxConn(); got != 2168 {
		t.Errorf("%d connections fit 5000 files", got)
	}
	if s.Files = 1 << 20; s.maxConn() != 8000 {
		t.Errorf("%d connections", s.maxConn())
	}
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("HAProxy is not installed")
	}
	// The engine starts with exactly these files: it refuses a configuration that needs more.
	s = world(t.TempDir())
	s.Files = 5000
	cmd := exec.Command("sh", "-c", "ulimit -n 5000; exec timeout 2 haproxy -db -f "+written(t, s))
	out, _ := cmd.CombinedOutput()
	if strings.Contains(string(out), "ALERT") {
		t.Errorf("%s", out)
	}
}

// Two endpoints with one number get two, whatever else there is, and all numbers fit what the engine hashes.
func TestIDs(t *testing.T) {
	var all []netip.AddrPort
	for i := range 5000 {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80))
	}
	used, alone := map[uint32]bool{}, 0
	numbers := serverIDs(all)
	for _, e := range all {
		id := numbers[e]
		if id == 0 || id >= 1<<idBits || used[id] {
			t.Fatalf("%v has the number %d", e, id)
		}
		used[id] = true
		if serverIDs([]netip.AddrPort{e})[e] == id {
			alone++
		}
	}
	if alone < len(all)-50 || alone == len(all) {
		t.Errorf("%d of %d have the number that they have alone", alone, len(all))
	}
}

func TestCommands(t *testing.T) {
	s := world("")
	s.Services = s.Services[:1]
	numbers := serverIDs(s.Services[0].Ports[0].Endpoints)
	first, second := numbers[endpoint("10.244.0.5:8080")], numbers[endpoint("10.244.1.6:8080")]
	words := " weight 16 send-proxy-v2 check inter 5000ms rise 1 fall 3"
	const name = "shop:tcp:80"
	for _, tt := range []struct {
		name    string
		running []Server
		want    []string
	}{
		{"nothing to do", []Server{{name, "10.244.0.5_8080", first, false}, {name, "10.244.1.6_8080", second, false}}, nil},
		{"added", []Server{{name, "10.244.0.5_8080", first, false}}, []string{
			fmt.Sprintf("add server shop:tcp:80/10.244.1.6_8080 10.244.1.6:8080 id %d", second) + words,
			"enable health shop:tcp:80/10.244.1.6_8080", "set server shop:tcp:80/10.244.1.6_8080 state ready"}},
		{"closed and back", []Server{{name, "10.244.0.5_8080", first, true}, {name, "10.244.1.6_8080", second, false}},
			[]string{"set server shop:tcp:80/10.244.0.5_8080 state ready"}},
		{"gone", []Server{
			{name, "10.244.0.5_8080", first, false}, {name, "10.244.1.6_8080", second, false},
			{name, "10.244.9.9_8080", 9, false},
		},
			[]string{"set server shop:tcp:80/10.244.9.9_8080 state maint", "del server shop:tcp:80/10.244.9.9_8080"}},
		{"gone, with connections", []Server{
			{name, "10.244.0.5_8080", first, false}, {name, "10.244.1.6_8080", second, false},
			{name, "10.244.9.9_8080", 9, true},
		},
			[]string{"del server shop:tcp:80/10.244.9.9_8080"}},
		{"another number", []Server{{name, "10.244.0.5_8080", 7, false}, {name, "10.244.1.6_8080", second, false}}, []string{
			"set server shop:tcp:80/10.244.0.5_8080 state maint", "del server shop:tcp:80/10.244.0.5_8080",
			fmt.Sprintf("add server shop:tcp:80/10.244.0.5_8080 10.244.0.5:8080 id %d", first) + words,
			"enable health shop:tcp:80/10.244.0.5_8080", "set server shop:tcp:80/10.244.0.5_8080 state ready"}},
	} {
		got := s.Commands(tt.running)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
		if want := tt.name == "nothing to do" || tt.name == "gone, with connections"; Settled(got) != want {
			t.Errorf("%s: settled %v", tt.name, !want)
		}
	}
}

func TestParse(t *testing.T) {
	got, err := ParseServers("1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state\n3 a:b:80 1 " +
		"127.0.0.1_9001 127.0.0.1 2 0 16\n" +
		"3 a:b:80 2 ::1_9002 ::1 0 1 16\n\n")
	if want := []Server{{"a:b:80", "127.0.0.1_9001", 1, false}, {"a:b:80", "::1_9002", 2, true}}; err != nil ||
		!cmp.Equal(want, got) {
		t.Error(got, err)
	}
	for _, text := range []string{"", "2\n", "1\nshort line", "1\n3 a x b c 2 0"} {
		if got, err := ParseServers(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
	for name, want := range map[string][]string{
		"shop:web:80": {"shop", "web", "80"}, streams + "7": nil, "MASTER": nil, "a:b": nil,
	} {
		if got := ParseBackend(name); !slices.Equal(got, want) {
			t.Errorf("%s is the backend %v", name, got)
		}
	}
}

// grammar are all lines that a configuration may have.
var grammar = regexp.MustCompile(`^(global|defaults|backend streams|listen [a-z0-9-]+:[a-z0-9-]+:\d+|` +
	`  (description [0-9a-f]{32}|maxconn \d+|nbthread \d+|noreuseport|tune.(snd|rcv)buf.(client|server) \d+|` +
	`stats socket "\$\{HOLDFAST_SOCKET\}" mode 600 level admin expose-fd listeners|stats timeout 10s|server-state-file /run/holdfast/states|` +
	`load-server-state-from-file global|retries 3|option redispatch 1|stick-table type integer size 16 expire 1h store conn_cur|` +
	`bind (0\.0\.0\.0:\d+ id 1 name [0-9.]+|\[::\]:\d+ v6only id 2 name [0-9a-f:]+)` +
	`( ssl crt /run/holdfast/pair-[0-9a-f]{32}.pem ssl-min-ver TLSv1.2( alpn h2,http/1.1)?)?|mode ` +
	`(tcp|http)|timeout (client|server|connect|check|http-request) \d+ms|` +
	`tcp-request connection (set-dst so_name|set-dst-port int\(\d+\)|` +
	`reject if (\{ so_id [12] \}( !own)?( !?(deny|allow)[46])?)|` +
	`set-var\(sess.port\) src_port)|` +
	`acl (own src -f /run/holdfast/internal.lst|(deny|allow)[46] src -f /run/holdfast/list-[0-9a-f]{32}.lst)|` +
	`tcp-request inspect-delay \d+ms|tcp-request content accept if \{ req.len gt 0 \}|option forwardfor|option httpchk GET /|http-check expect status 200|` +
	`http-request (set-header X-Forwarded-(Proto https?|Port \d+)|del-header X-Forwarded-For|track-sc0 int\(1\) table streams)|` +
	`http-request deny deny_status 503 if \{ sc0_conn_cur gt \d+ \}|balance (roundrobin|leastconn|source|hash src,concat\(:,sess.port\))|` +
	`hash-type consistent sdbm avalanche|` +
	`server [0-9a-f.:]+_\d+ (\d+\.\d+\.\d+\.\d+|\[[0-9a-f:]+\]):\d+ id \d+ weight 16( send-proxy(-v2)?)?( check inter \d+ms rise \d+ fall \d+)?))$`)

func FuzzConfig(f *testing.F) {
	f.Add("shop", "web", "192.0.2.1", "fe80::1%eth0", "10.0.0.0/8", "10.0.0.1", uint16(80), uint16(30080), "ROUND_ROBIN",
		2, int64(5e9), 3, true, "")
	f.Add("shop", "tls", "192.0.2.1", "2001:db8::1", "10.0.0.0/8", "10.0.0.1", uint16(443), uint16(30443), "ROUND_ROBIN",
		0, int64(5e9), 3, false,
		"0123456789abcdef0123456789abcdef")
	f.Add("shop", "tls", "192.0.2.1", "2001:db8::1", "10.0.0.0/8", "10.0.0.1", uint16(443), uint16(30443), "ROUND_ROBIN",
		0, int64(5e9), 3, false,
		"../x.pem ca-file /")
	f.Add("shop\n", "web{", "::ffff:192.0.2.1", "2001:db8::1", "::/0", "::ffff:10.0.0.1", uint16(0), uint16(1), "x\ny", -1,
		int64(-5), -3, false, "x\n")
	f.Fuzz(func(
		t *testing.T,
		namespace, name, a, b, list, to string,
		port, listen uint16,
		method string,
		header int,
		d int64,
		n int,
		flag bool,
		pair string,
	) {
		address := func(text string) netip.Addr { a, _ := netip.ParseAddr(text); return a }
		p, _ := netip.ParsePrefix(list)
		s := State{Engine: Engine{Directory: "/run/holdfast", Threads: n, MaxConn: n, Files: n}, Internal: []netip.Prefix{p}}
		service := Service{
			Key: lb.Key{Namespace: namespace, Name: name}, Addresses: []netip.Addr{address(a), address(b)},
			Proxy: lb.Proxy{Header: header, HTTP: flag, Secret: pair, Method: lb.Method(method), Client: time.Duration(d),
				Member:  time.Duration(d),
				Connect: time.Duration(d),
				Inspect: time.Duration(d), Monitor: &lb.Monitor{
					Delay: time.Duration(d), Timeout: time.Duration(d), Rise: n, Fall: n,
				}},
			Certificate: pair,
			Access:      lb.Access{Restricted: flag, InternalAllowed: flag, Allow: []netip.Prefix{p}, Deny: []netip.Prefix{p}},
			Ports: []Port{
				{Port: port, Listen: listen, Endpoints: []netip.AddrPort{netip.AddrPortFrom(address(to), port)}},
				{Port: port, Listen: listen},
			},
		}
		s.Services = []Service{service}
		for line := range strings.Lines(s.Config().Text) {
			if !strings.HasSuffix(line, "\n") || !grammar.MatchString(line[:len(line)-1]) {
				t.Errorf("%q", line)
			}
		}
		for _, c := range s.Commands(nil) {
			if strings.ContainsAny(c, ";\n\\") {
				t.Errorf("%q", c)
			}
		}
		if _, ok := methods[lb.Method(method)]; len(s.sorted()) == 0 && ok && service.isUsable() {
			t.Error("a usable Service is left out")
		}
	})
}

func TestCompile(t *testing.T) {
	proxied, secret := settings(), settings()
	secret.Secret = "tls"
	key := func(name string) lb.Key { return lb.Key{Namespace: "shop", Name: name} }
	service := func(name string, proxy *lb.Proxy, nodePort uint16, addresses ...netip.Addr) *lb.Service {
		return &lb.Service{
			Key: key(name), Addresses: addresses, Proxy: proxy,
			Ports: []lb.Port{{Protocol: "TCP", Port: 80, NodePort: nodePort}},
		}
	}
	refused := service("refused", &proxied, 30087, addr("192.0.2.6")) // beyond its namespace's bound, it costs nothing
	refused.ProxyRefused = true
	web := service("web", &proxied, 30080, addr("2001:db8::1"), addr("192.0.2.1"))
	web.Ports = append(web.Ports, lb.Port{Protocol: "TCP", Port: 81, NodePort: 7950}, lb.Port{Protocol: "TCP", Port: 82},
		lb.Port{Protocol: "UDP", Port: 80, NodePort: 30081})
	services := []*lb.Service{
		service("bad\nname", &proxied, 30084, addr("192.0.2.3")), service("kernel", nil, 30082, addr("192.0.2.2")), refused,
		service("tls", &secret, 30085, addr("192.0.2.4")), // nothing answers in plain text for one without a pair
		service("tlz", &secret, 30086, addr("192.0.2.5")), service("waits", &proxied, 30083), web,
		service("web2", &proxied, 30080, addr("198.51.100.1")),
	}
	good := []netip.AddrPort{endpoint("10.244.0.5:80"), endpoint("10.244.0.5:81"), endpoint("[fd00::5]:80")}
	endpoints := map[lb.Key]map[uint16][]netip.AddrPort{key("web"): {80: good}}
	got, clash := Compile(services, endpoints, Bounds{
		Families: []lb.Family{lb.IPv4, lb.IPv6}, Own: []uint16{7950}, Certificates: map[lb.Key]string{key("tlz"): crt},
	})
	want := []Service{
		{Key: key("tlz"), Addresses: []netip.Addr{addr("192.0.2.5")}, Proxy: secret, Certificate: crt,
			Ports: []Port{{Port: 80, Listen: 30086}}},
		{Key: key("web"), Addresses: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}, Proxy: proxied,
			Ports: []Port{{Port: 80, Listen: 30080, Endpoints: good}}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if !slices.Equal(clash, []uint16{7950, 30080}) {
		t.Errorf("cannot listen on %v", clash)
	}
	// A pod without a family does not listen for it.
	if got, _ := Compile(services, endpoints, Bounds{Families: []lb.Family{lb.IPv4}}); len(got[0].Addresses) != 1 {
		t.Errorf("listens for %v", got[0].Addresses)
	}
}

func TestDue(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, tt := range []struct {
		old         int
		last, since time.Duration
		want        time.Duration
	}{
		{0, -time.Hour, 0, 500*time.Millisecond - time.Hour}, // at once
		{0, 0, 0, 500 * time.Millisecond},
		{1, 0, 0, 500 * time.Millisecond},
		{2, -time.Hour, 0, time.Minute}, // the oldest has a minute to end by itself
		{3, 0, time.Second, 61 * time.Second},
		{1, time.Minute, 0, time.Minute}, // an edit that waited a minute waits no longer
	} {
		if got := Due(tt.old, start.Add(tt.last), start.Add(tt.since)).Sub(start); got != tt.want {
			t.Errorf("%d old workers, %v since the last reload, an edit at %v: %v, want %v", tt.old, tt.last, tt.since, got,
				tt.want)
		}
	}
}

// twoServices has a Service in each of two namespaces.
func twoServices(client time.Duration, to string) (out []Service) {
	for i, namespace := range []string{"calm", "noisy"} {
		p := settings()
		p.Client = client
		out = append(out, Service{Key: lb.Key{Namespace: namespace, Name: "web"}, Addresses: []netip.Addr{addr("192.0.2.1")},
			Proxy: p,
			Ports: []Port{{Port: 80, Listen: uint16(30000 + i), Endpoints: []netip.AddrPort{endpoint(to)}}}})
	}
	return out
}

func names(services []Service) (out []string) {
	for _, s := range services {
		out = append(out, fmt.Sprint(s.Key, " ", s.Client, " ", s.Ports[0].Endpoints))
	}
	slices.Sort(out)
	return out
}

// A Service that is no longer wanted is served until all have heard of it; if it is wanted again, it is served all the
// time.
func TestLinger(t *testing.T) {
	start, until := time.Unix(1000, 0), map[lb.Key]time.Time{}
	both := twoServices(time.Second, "10.0.0.1:80")
	taken := twoServices(time.Second, "10.0.0.2:80")[0]
	taken.Ports[0].Listen = both[1].Ports[0].Listen
	calm, noisy := "calm/web 1s [10.0.0.1:80]", "noisy/web 1s [10.0.0.1:80]"
	var last []Service
	for _, tt := range []struct {
		at   time.Duration
		want []Service
		get  []string
		ends int
	}{
		{0, both, []string{calm, noisy}, 0},
		{time.Second, both[:1], []string{calm, noisy}, 1},
		{10 * time.Second, both[:1], []string{calm, noisy}, 1},
		{11 * time.Second, both[:1], []string{calm}, 0},
		{12 * time.Second, both, []string{calm, noisy}, 0},
		{13 * time.Second, both[:1], []string{calm, noisy}, 1},
		{14 * time.Second, both, []string{calm, noisy}, 0},
		{15 * time.Second, nil, []string{calm, noisy}, 2},
		{16 * time.Second, []Service{taken}, []string{"calm/web 1s [10.0.0.2:80]"}, 0},
	} {
		last = Linger(last, tt.want, until, start.Add(tt.at))
		if diff := cmp.Diff(tt.get, names(last)); diff != "" || len(until) != tt.ends {
			t.Errorf("after %v: %v: -want +got\n%s", tt.at, until, diff)
		}
	}
}

// TestListsOnce: a thousand ports of one Service have its five thousand source ranges in one file.
func TestListsOnce(t *testing.T) {
	s := world("/run/holdfast")
	service := s.Services[2]
	service.Allow, service.Deny, service.Ports = nil, nil, nil
	for i := range 5000 {
		service.Allow = append(service.Allow, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(i >> 8), byte(i), 0}), 24))
	}
	for i := range 1000 {
		service.Ports = append(service.Ports, Port{Port: uint16(1 + i), Listen: uint16(30000 + i)})
	}
	s.Services = []Service{service}
	size := len(s.Config().Text)
	for _, text := range s.Lists() {
		size += len(text)
	}
	if lists := s.Lists(); len(lists) != 2 || size > 1<<20 {
		t.Errorf("%d files, with the configuration of %d octets", len(lists), size)
	}
}
