package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/e2e/lab/debian"
	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// Up brings a lab up and returns when all nodes are Ready. What is not there
// yet, packages and binaries, is installed and compiled first, with one line
// of progress each. If Up fails or ctx ends, nothing stays behind.
func Up(ctx context.Context, c Config, progress io.Writer) (*Lab, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("bring lab up: must be root")
	}
	unlock, err := lock(ctx)
	if err != nil {
		return nil, err
	}
	l, err := up(ctx, c, progress)
	return l, errors.Join(err, unlock())
}

func up(ctx context.Context, c Config, progress io.Writer) (*Lab, error) {
	if _, err := Open(); err == nil {
		return nil, ErrUp
	} else if !errors.Is(err, ErrNotUp) {
		return nil, err
	}
	if running, err := runs(); err != nil {
		return nil, err
	} else if running {
		return nil, errors.New("bring lab up: processes of another lab run: take it down first")
	}
	// What was killed, or a machine that started again, leaves a lab of which nothing runs.
	if err := takeDown(ctx); err != nil {
		return nil, err
	}
	repo, err := toolset.FindRepo()
	if err != nil {
		return nil, err
	}
	if err := Install(ctx, progress); err != nil {
		return nil, err
	}
	if err := debian.Install(ctx, c.plugin().Packages, progress); err != nil {
		return nil, err
	}
	l := &Lab{Config: c, Plan: plan(c)}
	if err := l.build(ctx, repo, progress); err != nil {
		// The context may be what failed; cleaning up has time of its own.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, takeDown(cleanup))
	}
	return l, nil
}

// build does everything that Down undoes, compiling included.
func (l *Lab) build(ctx context.Context, repo string, progress io.Writer) error {
	if err := makeCgroup(); err != nil {
		return err
	}
	group, err := hostCgroup(buildCgroup)
	if err != nil {
		return err
	}
	compiler := toolset.Builder{Repo: repo, Cgroup: group, Progress: progress}
	if l.ToolDirs, err = compiler.Build(ctx, l.sets()); err != nil {
		return err
	}
	return l.boot(ctx, compiler, progress)
}

// boot makes a cluster of what is compiled.
func (l *Lab) boot(ctx context.Context, compiler toolset.Builder, progress io.Writer) error {
	start := time.Now()
	report := func(format string, args ...any) {
		fmt.Fprintf(progress, "%6s  %s\n", seconds(time.Since(start)), fmt.Sprintf(format, args...))
	}
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	if err := buildHelpers(ctx, compiler); err != nil {
		return err
	}
	if err := l.writeImages(); err != nil {
		return err
	}
	var err error
	if l.Limits, err = cgroupLimits(); err != nil {
		return err
	}
	cp := l.Plan[0]
	keys, err := newPKI(server(cp))
	if err != nil {
		return err
	}
	if err := l.prepare(keys); err != nil {
		return err
	}
	if err := makeSwitch(ctx); err != nil {
		return err
	}
	report("programs, images, certificates and switch are there")
	if err := l.bootCluster(ctx, cp, keys, report); err != nil {
		return err
	}
	return l.save()
}

// prepare writes the files of all hosts.
func (l *Lab) prepare(keys *pki) error {
	for _, h := range l.Plan {
		if err := l.writeSpec(h, keys); err != nil {
			return err
		}
	}
	admin, err := keys.admin()
	if err != nil {
		return err
	}
	return os.WriteFile(l.Kubeconfig(), admin, 0o600)
}

// bootCluster starts the control plane first: everything else waits for it,
// and on few cores would only be in its way.
func (l *Lab) bootCluster(ctx context.Context, cp wire.Host, keys *pki, report func(string, ...any)) error {
	client, err := newAPI(keys)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	startNode := func(h wire.Host) error {
		if err := l.start(groupCtx, h); err != nil {
			return err
		}
		return l.importImages(groupCtx, h)
	}
	group.Go(func() error { return startNode(cp) })
	group.Go(func() error {
		for _, h := range l.Plan {
			if h.IsNode() {
				continue
			}
			if err := l.start(groupCtx, h); err != nil {
				return err
			}
		}
		report("routers, client and far host are running")
		return nil
	})
	group.Go(func() error {
		if err := client.waitServer(groupCtx); err != nil {
			return fmt.Errorf("wait for the API server: %w: %s", err, l.lastLine(cp, "kube-apiserver"))
		}
		report("API server is ready")
		for _, h := range l.Plan.Nodes() {
			if h.Role == wire.Worker {
				group.Go(func() error { return startNode(h) })
			}
		}
		return client.bindProxies(groupCtx)
	})
	if err := group.Wait(); err != nil {
		return err
	}

	// All images are there: a pod that lacks its own would wait for the kubelet's next attempt.
	if err := l.applyPlugin(ctx); err != nil {
		return err
	}
	if err := client.waitNodes(ctx, l.Nodes()); err != nil {
		return err
	}
	report("all nodes are Ready")
	if err := client.labelControlPlane(ctx, cp.Name); err != nil {
		return err
	}
	return l.waitPlugin(ctx)
}

func cgroupLimits() (bool, error) {
	root, err := cgroupRoot()
	if err != nil {
		return false, err
	}
	controllers, err := readControllers(root)
	return hostinit.HasControllers(controllers), err
}
