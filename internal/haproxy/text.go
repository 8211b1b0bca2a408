package haproxy

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// methods are the lines of each method. A hash is consistent: otherwise HAProxy takes no new servers at run time, and
// each change moves all clients.
var methods = map[lb.Method][]string{
	lb.RoundRobin:       {"balance roundrobin"},
	lb.LeastConnections: {"balance leastconn"},
	lb.SourceIP:         {"balance source", consistent},
	lb.SourceIPPort:     {"balance hash src,concat(:,sess.port)", consistent},
}

const consistent = "hash-type consistent sdbm avalanche"

// headers are the words of a server, by the version of the header.
var headers = []string{"", "send-proxy", "send-proxy-v2"}

// Config is a configuration of HAProxy.
type Config struct {
	// Text is the file. It has the servers, so that a restart begins with them.
	Text string
	// Hash is of all but the servers, which change without a reload. The running worker shows it as its description.
	Hash string
}

// Config returns the configuration.
func (s State) Config() (c Config) {
	maxConn := s.maxConn()
	quarter := strconv.Itoa(max(1, maxConn/4))
	patterns, _ := s.Patterns()
	patterns = path.Join(s.Directory, patterns)
	var fixed, text strings.Builder
	global := s.global(maxConn)
	fixed.WriteString(global)
	for _, service := range s.sorted() {
		fixed.WriteString(service.words())
		for _, p := range service.Ports {
			section := service.section(p, quarter, patterns, s.Directory)
			fixed.WriteString(section)
			text.WriteString(section)
			for _, server := range service.servers(p) {
				text.WriteString("  server " + server.name + " " + server.arguments + "\n")
			}
		}
	}
	c.Hash = Digest(fixed.String())
	c.Text = "global\n  description " + c.Hash + "\n" + global + text.String()
	return c
}

// global is the part that all Services share, without its first lines. Workers have a parent of ours, which ends old
// ones.
func (s State) global(maxConn int) string {
	text := fmt.Sprintf(`  maxconn %d
  nbthread %d
  stats socket "${%s}" mode 600 level admin expose-fd listeners
  stats timeout 10s
  server-state-file %s
defaults
  load-server-state-from-file global
  retries 3
  option redispatch 1
`, maxConn, max(1, s.Threads), SocketVariable, path.Join(s.Directory, StatesFile))
	for i := range tables {
		text += fmt.Sprintf("backend %s%d\n  stick-table type integer size 1k expire 1h store conn_cur\n", counts, i)
	}
	return text
}

const (
	// SocketVariable is the variable of the environment that names a worker's socket for commands.
	SocketVariable = "HOLDFAST_SOCKET"
	// StatesFile is in Engine.Directory.
	StatesFile = "states"
)

// counts are sections without servers that count the connections of Services with several ports. No Service has their
// names. There are several tables, because HAProxy walks all sections that share one for each that joins; each has room
// for all ports that fall to it.
const counts, tables = "connections", 64

// section is a port of a Service without its servers. Its listeners have the ids 1 for IPv4 and 2 for IPv6, by which
// rules tell the families apart: HAProxy compares an IPv4 address with IPv6 ranges too, so that ::/0 contains all of
// them. The name of a listener is the Service's address.
func (s Service) section(p Port, quarter, patterns, directory string) string {
	var b strings.Builder
	line := func(words ...string) { b.WriteString("  " + strings.Join(words, " ") + "\n") }
	b.WriteString("listen " + backend(s.Key, p.Port) + "\n")
	listen, tls := strconv.Itoa(int(p.Listen)), s.tls(directory)
	for _, a := range s.Addresses {
		if a.Is4() {
			line("bind", "0.0.0.0:"+listen, "id 1 name "+a.String()+tls)
		} else {
			line("bind", "[::]:"+listen, "v6only id 2 name "+a.String()+tls)
		}
	}
	// The Service's address and port first: headers and rules must not see the proxy's own.
	line("tcp-request connection set-dst so_name")
	line("tcp-request connection set-dst-port", "int("+strconv.Itoa(int(p.Port))+")")
	s.lists(line, patterns)
	line("maxconn", quarter)
	if len(s.Ports) > 1 {
		first := int(s.Ports[0].Listen)
		line(
			"tcp-request connection track-sc0",
			"int("+strconv.Itoa(first)+")",
			"table",
			counts+strconv.Itoa(first%tables),
		)
		line("tcp-request connection reject if { sc0_conn_cur gt", quarter, "}")
	}
	if s.Method == lb.SourceIPPort {
		line("tcp-request connection set-var(sess.port) src_port")
	}
	s.mode(line, p)
	for _, l := range methods[s.Method] {
		line(l)
	}
	return b.String()
}

func (s Service) http() bool { return s.HTTP || s.Certificate != "" && s.Header == 0 }

// tls are the words of a listener where TLS ends.
func (s Service) tls(directory string) string {
	if s.Certificate == "" {
		return ""
	}
	words := " ssl crt " + path.Join(directory, PairFile(s.Certificate)) + " ssl-min-ver TLSv1.2"
	if s.http() {
		words += " alpn h2,http/1.1"
	}
	return words
}

// patternsInLine keeps a line below HAProxy's 64 words.
const patternsInLine = 32

// lists are the source lists again: pods, and routers with routes to pods, reach the proxy past the filter.
func (s Service) lists(line func(...string), patterns string) {
	if !s.HasRanges() {
		return
	}
	except := ""
	if s.InternalAllowed {
		line("acl own src -f", patterns)
		except = "!own"
	}
	for _, a := range s.Addresses {
		version, listener := "4", "{ so_id 1 }"
		if a.Is6() {
			version, listener = "6", "{ so_id 2 }"
		}
		acl := func(name string, list []netip.Prefix) string {
			var texts []string
			for _, p := range list {
				if p.Addr().Is4() == a.Is4() {
					texts = append(texts, p.Masked().String())
				}
			}
			for i := 0; i < len(texts); i += patternsInLine {
				line("acl", name+version, "src", strings.Join(texts[i:min(i+patternsInLine, len(texts))], " "))
			}
			if len(texts) == 0 {
				return ""
			}
			return name + version
		}
		reject := func(condition string) {
			line(strings.Fields("tcp-request connection reject if " + listener + " " + except + " " + condition)...)
		}
		if name := acl("deny", s.Deny); name != "" {
			reject(name)
		}
		switch name := acl("allow", s.Allow); {
		case !s.Restricted:
		case name == "":
			reject("")
		default:
			reject("!" + name)
		}
	}
}

// mode is TCP or HTTP with its times and check.
func (s Service) mode(line func(...string), p Port) {
	line("timeout client", milliseconds(s.Client))
	line("timeout server", milliseconds(s.Member))
	line("timeout connect", milliseconds(s.Connect))
	if s.Monitor != nil {
		line("timeout check", milliseconds(s.Monitor.Timeout))
	}
	if !s.http() {
		line("mode tcp")
		if s.Inspect > 0 {
			line("tcp-request inspect-delay", milliseconds(s.Inspect))
			line("tcp-request content accept if { req.len gt 0 }")
		}
		return
	}
	line("mode http")
	// A client that sends its request octet by octet is idle too.
	line("timeout http-request", milliseconds(s.Client))
	if s.HTTP {
		line("option forwardfor")
	}
	scheme := "http"
	if s.Certificate != "" {
		scheme = "https"
	}
	line("http-request set-header X-Forwarded-Proto", scheme)
	line("http-request set-header X-Forwarded-Port", strconv.Itoa(int(p.Port)))
	if s.Monitor != nil {
		line("option httpchk GET /")
		line("http-check expect status 200")
	}
}

// server is an endpoint of a port.
type server struct {
	name string
	id   uint32
	// arguments are the same in the file and in a command: HAProxy takes no defaults of the section for the latter.
	arguments string
}

// words are the settings of each server of the Service.
func (s Service) words() string {
	// Consistent hashing spreads by the number of points, 16 for each unit of weight.
	words := " weight 16"
	if h := headers[s.Header]; h != "" {
		words += " " + h
	}
	if m := s.Monitor; m != nil {
		words += " check inter " + milliseconds(m.Delay) + " rise " + count(m.Rise) + " fall " + count(m.Fall)
	}
	return words
}

func (s Service) servers(p Port) (out []server) {
	words, numbers := s.words(), ids(p.Endpoints)
	for _, e := range p.Endpoints {
		out = append(out, server{
			name: e.Addr().String() + "_" + strconv.Itoa(int(e.Port())), id: numbers[e],
			arguments: fmt.Sprintf("%s id %d%s", e, numbers[e], words),
		})
	}
	return out
}
