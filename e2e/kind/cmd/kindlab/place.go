package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/kind/engine"
	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
)

// place is where commands run: the network namespace of the Docker Engine, with the programs of a cluster in PATH.
type place struct {
	repo, cache string
	engine      *engine.Engine // nil means the machine's
	kept
}

// kept is what other commands need to know of the cluster that is up.
type kept struct {
	Tools   []string // directories of compiled programs
	Outside string   // image of the hosts beside the nodes
}

func newPlace() (*place, error) {
	repo, err := toolset.FindRepo()
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache: %w", err)
	}
	p := &place{repo: repo, cache: filepath.Join(cache, "holdfast-kind")}
	if os.Geteuid() == 0 {
		p.engine, err = engine.Open()
	}
	return p, err
}

// open returns the place of the cluster that was brought up.
func open() (*place, error) {
	p, err := newPlace()
	if err != nil {
		return nil, err
	}
	if p.engine == nil && !dockerAnswers() {
		return nil, errNoDocker
	}
	b, err := os.ReadFile(p.keptFile())
	if err == nil {
		err = json.Unmarshal(b, &p.kept)
	}
	if os.IsNotExist(err) {
		err = nil
	}
	return p, err
}

// runDir holds the files of a cluster that is up.
func (p *place) runDir() string { return filepath.Join(p.cache, "run") }

func (p *place) keptFile() string { return filepath.Join(p.cache, "place.json") }

// save keeps for other commands what they need to know.
func (p *place) save() error {
	b, err := json.Marshal(p.kept)
	if err != nil {
		return err
	}
	return os.WriteFile(p.keptFile(), b, 0o644)
}

func (p *place) env() []string {
	env := os.Environ()
	path := os.Getenv("PATH")
	if p.engine != nil {
		env, path = p.engine.Env(), p.engine.Path()+":"+path
	}
	if len(p.Tools) > 0 {
		path = strings.Join(p.Tools, ":") + ":" + path
	}
	return append(env, "PATH="+path, "KUBECONFIG="+filepath.Join(p.runDir(), "kubeconfig"))
}

// check reports what a cluster needs and is not there.
func (p *place) check() error {
	needed := slices.Clone(clients)
	if !p.contained() {
		needed = append(needed, "nsenter", "nft", "ip")
	}
	for _, program := range needed {
		cmd := exec.Command("sh", "-c", "command -v "+program)
		cmd.Env = p.env()
		if cmd.Run() != nil {
			return fmt.Errorf("program %s is missing", program)
		}
	}
	return nil
}

// command returns a command in the place.
func (p *place) command(ctx context.Context, argv ...string) *exec.Cmd {
	var cmd *exec.Cmd
	switch {
	case p.engine != nil:
		cmd = p.engine.Command(ctx, argv...)
	case p.contained():
		cmd = exec.CommandContext(ctx, "docker", p.contain(argv)...)
	default:
		cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	}
	cmd.Env = p.env()
	return cmd
}

// self runs this program in the place.
func (p *place) self(ctx context.Context, args ...string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return attached(p.command(ctx, append([]string{program}, args...)...))
}
