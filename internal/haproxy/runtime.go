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
	Backend string
	Name    string
	ID      uint32
	// Closed reports whether it gets no new connections, whatever the results of its checks are.
	Closed bool
}

// ParseServers reads the worker's answer to "show servers state".
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

		id, idErr := strconv.ParseUint(f[2], 10, 32)
		admin, adminErr := strconv.ParseUint(f[6], 0, 32)
		if err := errors.Join(idErr, adminErr); err != nil {
			return nil, fmt.Errorf("read a server's state: %w", err)
		}

		out = append(out, Server{
			Backend: f[1],
			Name:    f[3],
			ID:      uint32(id),
			Closed:  admin != 0,
		})
	}

	return out, nil
}

// path returns the name of the server in commands.
func (r Server) path() string { return r.Backend + "/" + r.Name }

// removal returns the commands that close and delete the server.
func (r Server) removal() (out []string) {
	if !r.Closed {
		out = append(out, "set server "+r.path()+" state maint")
	}
	return append(out, "del server "+r.path())
}

// Commands returns the commands that give a running worker with this configuration's hash the servers of the State. A
// server that is no longer wanted keeps its connections: it is closed at once, and a later call deletes it when they
// have ended.
func (s State) Commands(running []Server) []string {
	present := make(map[string]Server, len(running))
	for _, r := range running {
		present[r.path()] = r
	}

	var replaced, added, removed []string
	for _, service := range s.sorted() {
		for _, p := range service.Ports {
			for _, want := range service.servers(p) {
				name := backend(service.Key, p.Port) + "/" + want.name
				have, exists := present[name]
				delete(present, name)

				isSame := exists && have.ID == want.id
				if isSame && !have.Closed {
					continue
				}

				if exists && !isSame {
					replaced = append(replaced, have.removal()...)
				}

				if !isSame {
					added = append(added, "add server "+name+" "+want.arguments)
				}

				if !isSame && service.Monitor != nil {
					added = append(added, "enable health "+name)
				}

				added = append(added, "set server "+name+" state ready")
			}
		}
	}

	for _, r := range running {
		_, isUnwanted := present[r.path()]
		if isUnwanted {
			removed = append(removed, r.removal()...)
		}
	}

	return slices.Concat(replaced, added, removed)
}

// Settled reports whether the commands only delete closed servers. Then all other servers are as the State wants them.
func Settled(commands []string) bool {
	return all(commands, func(c string) bool {
		return strings.HasPrefix(c, "del server ")
	})
}

// patternsInLine is the number of patterns in a line of commands that fit the worker's buffer of 16 KiB.
const patternsInLine = 100

// Replace returns the commands that give a running worker another list of State.Internal, for all its ports at once.
// version is the worker's answer to Prepare.
func (s State) Replace(version string) (commands []string) {
	file := path.Join(s.Directory, InternalFile)
	prefixes := strings.Fields(lines(s.Internal))
	for chunk := range slices.Chunk(prefixes, patternsInLine) {
		var adds []string
		for _, p := range chunk {
			adds = append(adds, "add acl @"+version+" "+file+" "+p)
		}
		commands = append(commands, strings.Join(adds, ";"))
	}

	return append(commands, "commit acl @"+version+" "+file)
}

// Prepare returns the command that begins a list for Replace.
func (s State) Prepare() string {
	return "prepare acl " + path.Join(s.Directory, InternalFile)
}

// preparedPattern matches the worker's answer to Prepare.
var preparedPattern = regexp.MustCompile("New version created: ([0-9]+)")

// ParsePrepared returns the version in the answer to Prepare; "" if no port of the worker has the list.
func ParsePrepared(text string) string {
	m := preparedPattern.FindStringSubmatch(text)
	if m != nil {
		return m[1]
	}
	return ""
}
