package haproxy

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Server is a server of the running worker.
type Server struct {
	Backend, Name string
	ID            uint32
	// Closed: it gets no new connections, whatever its checks say.
	Closed bool
}

// ParseServers reads what the worker shows of its servers by "show servers state".
func ParseServers(text string) (out []Server, err error) {
	version, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if version != "1" {
		return nil, errors.New("the engine shows its servers in another version than 1")
	}
	for line := range strings.Lines(rest) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) < 7 {
			return nil, fmt.Errorf("read a server's state: %q", line)
		}
		id, err1 := strconv.ParseUint(f[2], 10, 32)
		admin, err2 := strconv.ParseUint(f[6], 0, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("read a server's state: %w", err)
		}
		out = append(out, Server{Backend: f[1], Name: f[3], ID: uint32(id), Closed: admin != 0})
	}
	return out, nil
}

// Commands returns what gives a running worker with this configuration's hash the servers of the State. A server that
// is no longer wanted keeps its connections: it is closed at once, and deleted when they have ended, by a later call.
func (s State) Commands(running []Server) []string {
	type key struct{ backend, name string }
	has := make(map[key]Server, len(running))
	for _, r := range running {
		has[key{r.Backend, r.Name}] = r
	}
	var before, add, after []string
	remove := func(r Server) (out []string) {
		if !r.Closed {
			out = append(out, "set server "+r.Backend+"/"+r.Name+" state maint")
		}
		return append(out, "del server "+r.Backend+"/"+r.Name)
	}
	for _, service := range s.sorted() {
		for _, p := range service.Ports {
			for _, o := range service.servers(p) {
				k := key{backend(service.Key, p.Port), o.name}
				name := k.backend + "/" + k.name
				r, stays := has[k]
				delete(has, k)
				if stays && r.ID == o.id && !r.Closed {
					continue
				}
				if stays && r.ID != o.id {
					before, stays = append(before, remove(r)...), false
				}
				if !stays {
					add = append(add, "add server "+name+" "+o.arguments)
					if service.Monitor != nil {
						add = append(add, "enable health "+name)
					}
				}
				add = append(add, "set server "+name+" state ready")
			}
		}
	}
	for _, r := range running {
		if _, unwanted := has[key{r.Backend, r.Name}]; unwanted {
			after = append(after, remove(r)...)
		}
	}
	return slices.Concat(before, add, after)
}

// Settled reports whether commands only delete servers that are closed: all others are as the State wants them.
func Settled(commands []string) bool {
	return all(commands, func(c string) bool { return strings.HasPrefix(c, "del server ") })
}

// patternsInLine of a command fit the worker's buffer of 16 KiB.
const patternsInLine = 100

// Replace returns the commands that give a running worker another list of State.Internal, at once for all its ports.
// version is what the worker answered to Prepare.
func (s State) Replace(version string) (commands []string) {
	file := path.Join(s.Directory, InternalFile)
	prefixes := strings.Fields(lines(s.Internal))
	for some := range slices.Chunk(prefixes, patternsInLine) {
		var adds []string
		for _, p := range some {
			adds = append(adds, "add acl @"+version+" "+file+" "+p)
		}
		commands = append(commands, strings.Join(adds, ";"))
	}
	return append(commands, "commit acl @"+version+" "+file)
}

// Prepare returns the command that begins a list for Replace.
func (s State) Prepare() string { return "prepare acl " + path.Join(s.Directory, InternalFile) }

var prepared = regexp.MustCompile("New version created: ([0-9]+)")

// ParsePrepared reads the answer to Prepare; "" if no port of the worker has the list.
func ParsePrepared(text string) string {
	if m := prepared.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}
