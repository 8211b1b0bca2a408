package testbed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Where the chart is installed, under the names it gives by default.
const (
	Namespace  = "holdfast-system"
	Release    = "holdfast"
	Controller = "holdfast-controller"
	Speaker    = "holdfast-speaker"
	Proxy      = "holdfast-proxy"
)

// helmWait is how long helm waits for what it installs, or removes.
const helmWait = "3m"

// Build compiles the programs of the outside hosts, and the plugin of kubectl.
func (b *Bed) Build(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", b.Path("bin")+"/",
		"./e2e/cmd/probe", "./e2e/cmd/whohas", "./kubectl-holdfast")
	cmd.Dir = b.root
	// Static: they run on hosts that may have other libraries.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("compile the programs of the outside hosts and the plugin: %w", err)
	}
	return nil
}

// UseArtifacts selects the directory with the image and the chart of what is loaded and installed from then on. At
// first it is dist, which make image chart and make release fill.
func (b *Bed) UseArtifacts(dir string) { b.artifacts = dir }

// LoadImage loads the image on all nodes, and the proxies' image if it is there: an earlier release has none.
func (b *Bed) LoadImage(ctx context.Context) error {
	file := filepath.Join(b.artifacts, "holdfast.tar")
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("find the image, which make image makes: %w", err)
	}
	if err := b.Cluster.LoadImage(ctx, file); err != nil {
		return err
	}
	proxy := filepath.Join(b.artifacts, "holdfast-proxy.tar")
	if _, err := os.Stat(proxy); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return b.Cluster.LoadImage(ctx, proxy)
}

// chart returns the packed chart.
func (b *Bed) chart() (string, error) {
	charts, err := filepath.Glob(filepath.Join(b.artifacts, "holdfast-*.tgz"))
	if err == nil && len(charts) != 1 {
		err = fmt.Errorf("%s has %d charts, want the chart that make chart makes", b.artifacts, len(charts))
	}
	if err != nil {
		return "", err
	}
	return charts[0], nil
}

// Version returns the version of the chart, which names its image too.
func (b *Bed) Version() (string, error) {
	chart, err := b.chart()
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(chart), "holdfast-"), ".tgz"), err
}

// Install installs or upgrades the chart, with further arguments for helm, and waits until
// it is ready. It resets all other values to the chart's defaults.
func (b *Bed) Install(ctx context.Context, args ...string) error {
	chart, err := b.chart()
	if err != nil {
		return err
	}
	_, err = b.Helm(ctx, append([]string{"upgrade", "--install", Release, chart,
		"--namespace", Namespace, "--create-namespace", "--reset-values", "--wait", "--timeout", helmWait},
		slices.Concat(b.Values, args)...)...)
	if err != nil {
		return errors.Join(err, b.podsNotReady(ctx))
	}
	b.mapper.Reset() // the CRDs are there now
	return nil
}

// Uninstall removes the chart and waits until its pods are gone.
func (b *Bed) Uninstall(ctx context.Context) error {
	if _, err := b.Helm(ctx, "uninstall", Release, "--namespace", Namespace, "--wait", "--timeout", helmWait); err != nil {
		return err
	}
	return Until(ctx, time.Minute, "the pods to be gone", func(ctx context.Context) error {
		pods, err := b.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are there, one of them %s", len(pods.Items), pods.Items[0].Name)
		}
		return err
	})
}

// podsNotReady describes the pods of Holdfast that are not ready, with the end of their logs.
func (b *Bed) podsNotReady(ctx context.Context) error {
	pods, err := b.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		if Ready(p) {
			continue
		}
		lines := int64(5)
		text, err := b.Kube.CoreV1().
			Pods(Namespace).
			GetLogs(p.Name, &corev1.PodLogOptions{TailLines: &lines}).
			DoRaw(ctx)
		if err != nil {
			text = []byte(err.Error())
		}
		errs = append(errs, fmt.Errorf("pod %s on %s is %s: %s", p.Name, p.Spec.NodeName, p.Status.Phase, text))
	}
	return errors.Join(errs...)
}
