package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	scaleServices = flag.String(
		"services",
		"3000",
		"how many Services the scale_ figures are about; with several numbers, as in 1000,3000,10000, the last counts",
	)
	scaleNodes    = flag.Int("nodes", 1000, "how many simulated nodes there are")
	scaleSpeakers = flag.Int("speakers", 2, "how many real speakers there are")
	scaleRest     = flag.Duration("rest", 2*time.Minute, "how long everything is watched at rest")
	scaleProfiles = flag.String(
		"profiles",
		"",
		"`directory` for profiles of a speaker and of the controller; none are made without it",
	)
	scalePicture = flag.String(
		"picture",
		"",
		"`file` for a picture, as SVG, of how costs grow with the numbers of -services",
	)
)

const (
	// growthProfile and restProfile are the durations of profiles of the CPU.
	growthProfile, restProfile = 25 * time.Second, 30 * time.Second
	// lateGrowth is the number of Services that are still to be created when the profile begins.
	lateGrowth = 500
)

// scaleFigures are the figures of a run.
var scaleFigures = measurement{units: map[string]string{
	"scale_speaker_idle_millicores":    "millicores",
	"scale_controller_idle_millicores": "millicores",
	"scale_speaker_mib":                "MiB",
	"scale_controller_mib":             "MiB",
	"scale_endpoint_change_cpu_us":     "us",
	"scale_endpoint_change_ms":         "ms",
	"scale_service_cpu_speaker_ms":     "ms",
	"scale_service_cpu_controller_ms":  "ms",
	"scale_create_ratio":               "ratio",
	"scale_1000_nodes_api_qps":         "requests/s",
}}

// simulation is a lab with real daemons, and the objects of a large cluster.
type simulation struct {
	b        *testbed.Bed
	crowd    crowd
	fleet    fleet
	speakers []string // the nodes that run one
}

// measureScale prints the figures that have the prefix, and reports whether there is one.
func measureScale(ctx context.Context, only string) (found bool, err error) {
	if !scaleFigures.wants(only) {
		return false, nil
	}

	sizes, err := scaleSizes(*scaleServices)
	if err != nil {
		return true, err
	}

	const name = "scale_create_ratio"
	ratio := map[string]float64{}
	if strings.HasPrefix(name, only) && sizes[len(sizes)-1] >= ratioTo {
		ratio[name], err = compare(ctx)
		if err != nil {
			return true, err
		}

		scaleFigures.write(ratio, only)
	}

	if only == name { // nothing else is asked
		return true, nil
	}

	var points []point
	err = inCluster(ctx, func(ctx context.Context, s *simulation, alive *errgroup.Group) (err error) {
		points, err = s.run(ctx, alive, sizes)
		return err
	})

	if len(points) > 0 {
		scaleFigures.write(points[len(points)-1].figures, only)
	}

	if err == nil && *scalePicture != "" {
		err = os.WriteFile(*scalePicture, picture(points), 0o644)
	}

	return true, err
}

// inCluster measures in a lab of its own, which it removes in any case. The functions that keep the crowd alive run in
// the group.
func inCluster(ctx context.Context, measure func(context.Context, *simulation, *errgroup.Group) error) (err error) {
	l, err := lab.Up(ctx, lab.Config{Workers: max(*scaleSpeakers, 1)}, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Down(context.WithoutCancel(ctx))) }()

	b, err := testbed.New(l)
	if err != nil {
		return err
	}

	crowd := newCrowd(b, *scaleNodes)
	s := &simulation{
		b:        b,
		crowd:    crowd,
		fleet:    fleet{b: b, crowd: crowd},
		speakers: b.Cluster.Nodes()[1:],
	}
	alive, both := errgroup.WithContext(ctx)
	both, stop := context.WithCancel(both)
	alive.Go(func() error {
		defer stop()
		err := s.prepare(both, alive)
		if err != nil {
			return err
		}

		return measure(both, s, alive)
	})
	return alive.Wait()
}

// scaleSizes reads numbers that grow.
func scaleSizes(text string) (sizes []int, err error) {
	for field := range strings.SplitSeq(text, ",") {
		before := 0
		if len(sizes) > 0 {
			before = sizes[len(sizes)-1]
		}

		n, err := strconv.Atoi(field)
		if err != nil || n <= before {
			return nil, fmt.Errorf("-services %s: want numbers that grow, as 1000,3000", text)
		}

		sizes = append(sizes, n)
	}

	return sizes, nil
}

// run measures at each number of Services.
func (s *simulation) run(ctx context.Context, alive *errgroup.Group, sizes []int) (points []point, err error) {
	err = s.install(ctx)
	if err != nil {
		return nil, err
	}

	err = countRequests(ctx, s.b)
	if err != nil {
		return nil, err
	}

	alive.Go(func() error { return s.crowd.live(ctx, stateEvery, s.crowd.writeState) })
	s.progress("Holdfast is there")
	before := 0
	for _, size := range sizes {
		got, err := s.measureAt(ctx, before, size)
		s.progress("%d Services: %v", size, got)
		points = append(points, point{size, got})
		if err != nil {
			return points, err
		}

		before = size
	}

	return points, nil
}

// progress prints an event, with the time and the load of the machine, which is in the figures.
func (s *simulation) progress(format string, args ...any) {
	load, _ := os.ReadFile("/proc/loadavg")
	moment := time.Now().Format(time.TimeOnly)
	progress("%s load %.4s: %s", moment, load, fmt.Sprintf(format, args...))
}

// prepare creates the crowd, and makes Holdfast's images known.
func (s *simulation) prepare(ctx context.Context, alive *errgroup.Group) error {
	err := s.crowd.create(ctx)
	if err != nil {
		return fmt.Errorf("make Nodes: %w", err)
	}

	alive.Go(func() error { return s.crowd.live(ctx, leaseEvery, s.crowd.renew) })
	alive.Go(func() error { return s.crowd.live(ctx, nodeEvery, s.crowd.report) })
	s.progress("%d Nodes are there", len(s.crowd.names))
	err = s.b.EnsureNamespace(ctx, app.Namespace)
	if err != nil {
		return err
	}

	err = s.b.Build(ctx)
	if err != nil {
		return err
	}

	err = s.b.LoadImage(ctx)
	if err != nil {
		return err
	}

	return s.label(ctx)
}

// label labels the nodes that run a speaker, for the chart: nodes of the crowd cannot run one.
func (s *simulation) label(ctx context.Context) error {
	nodes := s.b.Kube.CoreV1().Nodes()
	body := []byte(`{"metadata":{"labels":{"bench":"speaker"}}}`)
	for _, node := range s.speakers {
		_, err := nodes.Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{})
		if err != nil {
			return err
		}
	}

	return nil
}

// install installs Holdfast, with a SpeakerState of each Node and the objects that Services need.
func (s *simulation) install(ctx context.Context) error {
	err := s.b.Install(
		ctx,
		"--set",
		"speaker.nodeSelector.bench=speaker",
		"--set",
		"controller.replicas=1",
	)
	if err != nil {
		return err
	}

	err = s.b.WaitReady(ctx)
	if err != nil {
		return err
	}

	return errors.Join(
		s.crowd.createStates(ctx),
		s.b.Apply(ctx, "", scaleObjects()),
		s.b.Calm(ctx),
	)
}

// measureAt creates Services up to a number. It measures their creation, then the cluster at rest, then changes.
func (s *simulation) measureAt(ctx context.Context, before, size int) (map[string]float64, error) {
	got := map[string]float64{}
	err := s.growth(ctx, before, size, got)
	if err != nil {
		return got, err
	}

	err = s.rest(ctx, got)
	if err != nil {
		return got, err
	}

	err = s.changes(ctx, size, got)
	if err != nil {
		return got, err
	}

	return got, s.moves(ctx, size, got)
}

// growth measures the costs of a new Service, from the first creation until all are announced and their conditions
// written.
func (s *simulation) growth(ctx context.Context, before, size int, got map[string]float64) error {
	start, err := s.spent()
	if err != nil {
		return err
	}

	began := time.Now()
	var profiled func() error
	_, err = s.fleet.grow(ctx, before, size, nil, func(i int) {
		if i == max(before, size-lateGrowth) { // what grows with their number shows late
			profiled = s.profiles(ctx, "growth", growthProfile)
		}
	})

	if err != nil {
		return err
	}

	err = s.fleet.waitAnnounced(ctx, size)
	if err != nil {
		return err
	}

	took := time.Since(began)
	end, err := s.spent()
	if err != nil {
		return err
	}

	each := func(d time.Duration) float64 { return ms(d) / float64(size-before) }
	got["scale_service_cpu_speaker_ms"] = each(end.speakers-start.speakers) / float64(len(s.speakers))
	got["scale_service_cpu_controller_ms"] = each(end.controller - start.controller)
	s.progress(
		"%d Services more, %.0f s, %.1f/s; a speaker without its heartbeat process took %.2f ms each",
		size-before,
		took.Seconds(),
		float64(size-before)/took.Seconds(),
		each(end.planning-start.planning)/float64(len(s.speakers)),
	)
	return errors.Join(s.fleet.waitCalm(ctx), profiled())
}

// profiles begins to save profiles of the CPU of a speaker and of the controller. It returns the function that waits
// for them.
func (s *simulation) profiles(ctx context.Context, when string, duration time.Duration) (wait func() error) {
	finders := map[string]func() (daemon, error){
		"speaker":    func() (daemon, error) { return findSpeaker(s.b, s.speakers[0]) },
		"controller": s.controller,
	}
	page := fmt.Sprintf("profile?seconds=%.0f", duration.Seconds())
	var group errgroup.Group
	for name, find := range finders {
		group.Go(func() error {
			d, err := find()
			if err != nil {
				return err
			}

			return profile(ctx, d, name+"-"+when+".pb.gz", page)
		})
	}

	return group.Wait
}

// spent is the CPU time of the daemons. planning is the part of the speakers without their heartbeat processes.
type spent struct{ controller, speakers, planning time.Duration }

// spent returns the CPU time of the daemons until the present.
func (s *simulation) spent() (out spent, err error) {
	c, err := s.controller()
	if err != nil {
		return out, err
	}

	out.controller, err = cpuOf(c.all...)
	if err != nil {
		return out, err
	}

	for _, node := range s.speakers {
		d, err := findSpeaker(s.b, node)
		if err != nil {
			return out, err
		}

		all, err := cpuOf(d.all...)
		if err != nil {
			return out, err
		}

		planning, err := cpuOf(d.main)
		if err != nil {
			return out, err
		}

		out.speakers += all
		out.planning += planning
	}

	return out, nil
}

// controller finds the only controller.
func (s *simulation) controller() (daemon, error) {
	for _, node := range s.b.Cluster.Nodes() {
		d, err := findDaemon(s.b, node, "controller")
		if err == nil {
			return d, nil
		}
	}

	return daemon{}, errors.New("there is no controller")
}
