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
	// growthProfile and restProfile are how long profiles of CPU are.
	growthProfile, restProfile = 25 * time.Second, 30 * time.Second
	// lateGrowth is how many Services are still to come when the profile of their coming begins.
	lateGrowth = 500
)

// scaleFigures are the figures of a run.
var scaleFigures = measurement{units: map[string]string{
	"scale_speaker_idle_millicores": "millicores", "scale_controller_idle_millicores": "millicores",
	"scale_speaker_mib": "MiB", "scale_controller_mib": "MiB",
	"scale_endpoint_change_cpu_us": "us", "scale_endpoint_change_ms": "ms",
	"scale_service_cpu_speaker_ms": "ms", "scale_service_cpu_controller_ms": "ms",
	"scale_create_ratio": "ratio", "scale_1000_nodes_api_qps": "requests/s",
}}

// simulation is a lab with real daemons, and the objects of a large cluster.
type simulation struct {
	b        *testbed.Bed
	crowd    crowd
	fleet    fleet
	speakers []string // the nodes that run one
}

// measureScale prints the figures that have the prefix, and reports whether there are such.
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
		if ratio[name], err = compare(ctx); err != nil {
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

// inCluster measures in a lab of its own, which goes with all that is in it, in whatever way this ends. What keeps the
// crowd alive runs in the group.
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
	s := &simulation{b: b, crowd: newCrowd(b, *scaleNodes), speakers: b.Cluster.Nodes()[1:]}
	s.fleet = fleet{b, s.crowd}
	alive, both := errgroup.WithContext(ctx)
	both, stop := context.WithCancel(both)
	alive.Go(func() error {
		defer stop()
		if err := s.prepare(both, alive); err != nil {
			return err
		}
		return measure(both, s, alive)
	})
	return alive.Wait()
}

// scaleSizes reads numbers that grow.
func scaleSizes(text string) (sizes []int, err error) {
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n <= 0 || len(sizes) > 0 && n <= sizes[len(sizes)-1] {
			return nil, fmt.Errorf("-services %s: want numbers that grow, as 1000,3000", text)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// run measures at each number of Services.
func (s *simulation) run(ctx context.Context, alive *errgroup.Group, sizes []int) (points []point, err error) {
	if err := errors.Join(s.install(ctx), countRequests(ctx, s.b)); err != nil {
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

// progress prints what happened, with the load of the machine: others' work is in the figures.
func (s *simulation) progress(format string, args ...any) {
	load, _ := os.ReadFile("/proc/loadavg")
	progress("%s load %.4s: %s", time.Now().Format(time.TimeOnly), load, fmt.Sprintf(format, args...))
}

// prepare makes the crowd.
func (s *simulation) prepare(ctx context.Context, alive *errgroup.Group) error {
	if err := s.crowd.create(ctx); err != nil {
		return fmt.Errorf("make Nodes: %w", err)
	}
	alive.Go(func() error { return s.crowd.live(ctx, leaseEvery, s.crowd.renew) })
	alive.Go(func() error { return s.crowd.live(ctx, nodeEvery, s.crowd.report) })
	s.progress("%d Nodes are there", len(s.crowd.names))
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return s.b.EnsureNamespace(ctx, app.Namespace) },
		s.b.Build, s.b.LoadImage, s.label,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// label tells the chart which nodes run a speaker: the crowd cannot.
func (s *simulation) label(ctx context.Context) error {
	for _, node := range s.speakers {
		body := fmt.Appendf(nil, `{"metadata":{"labels":{"bench":"speaker"}}}`)
		if _, err := s.b.Kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body,
			metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// install installs Holdfast, with a SpeakerState of each Node and the objects that Services need.
func (s *simulation) install(ctx context.Context) error {
	if err := errors.Join(s.b.Install(ctx, "--set", "speaker.nodeSelector.bench=speaker", "--set",
		"controller.replicas=1"), s.b.WaitReady(ctx)); err != nil {
		return err
	}
	return errors.Join(s.crowd.createStates(ctx), s.b.Apply(ctx, "", scaleObjects()), s.b.Calm(ctx))
}

// measureAt makes Services up to a number and measures them while they come, then all at rest, then changes.
func (s *simulation) measureAt(ctx context.Context, before, size int) (map[string]float64, error) {
	got := map[string]float64{}
	for _, measure := range []func(context.Context, map[string]float64) error{
		func(ctx context.Context, got map[string]float64) error { return s.growth(ctx, before, size, got) },
		s.rest,
		func(ctx context.Context, got map[string]float64) error { return s.changes(ctx, size, got) },
		func(ctx context.Context, got map[string]float64) error { return s.moves(ctx, size, got) },
	} {
		if err := measure(ctx, got); err != nil {
			return got, err
		}
	}
	return got, nil
}

// growth measures what each Service costs while they come, from the first creation until all are announced and their
// conditions written, and what the controller holds then.
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
	if err == nil {
		err = s.fleet.announced(ctx, size)
	}
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
	return errors.Join(s.fleet.calm(ctx), profiled())
}

// profiles begins to save profiles of the CPU of a speaker and of the controller, and returns how to wait for them.
func (s *simulation) profiles(ctx context.Context, when string, long time.Duration) (wait func() error) {
	var group errgroup.Group
	for name, find := range map[string]func() (daemon, error){
		"speaker": func() (daemon, error) { return findSpeaker(s.b, s.speakers[0]) }, "controller": s.controller,
	} {
		group.Go(func() error {
			d, err := find()
			if err != nil {
				return err
			}
			return profile(ctx, d, name+"-"+when+".pb.gz", fmt.Sprintf("profile?seconds=%.0f", long.Seconds()))
		})
	}
	return group.Wait
}

// spent is the CPU time of our daemons.
type spent struct{ controller, speakers, planning time.Duration }

func (s *simulation) spent() (out spent, err error) {
	c, err := s.controller()
	if err != nil {
		return out, err
	}
	if out.controller, err = cpuOf(c.all...); err != nil {
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

// unasked waits until the speakers ask the API server for nothing any more: Events follow what they are about by
// minutes.
func (s *simulation) unasked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scaleLimit)
	defer cancel()
	for before := -1.0; ; {
		asked, err := requests(ctx, s.b)
		if err != nil || asked[testbed.Speaker] == before {
			return err
		}
		before = asked[testbed.Speaker]
		if err := pause(ctx, calmTime); err != nil {
			return err
		}
	}
}

// controller finds the only one.
func (s *simulation) controller() (daemon, error) {
	for _, node := range s.b.Cluster.Nodes() {
		if d, err := findDaemon(s.b, node, "controller"); err == nil {
			return d, nil
		}
	}
	return daemon{}, errors.New("there is no controller")
}

// rest measures everything while nothing happens.
func (s *simulation) rest(ctx context.Context, got map[string]float64) error {
	// A restart first: a heap that grew with the creation would distort the figure.
	if err := s.b.ReplaceSpeaker(ctx, s.speakers[0]); err != nil {
		return err
	}
	if err := errors.Join(s.b.Calm(ctx), s.fleet.calm(ctx), s.unasked(ctx), pause(ctx, repeatTime)); err != nil {
		return err
	}
	s.progress("at rest")
	speaker, err := findSpeaker(s.b, s.speakers[0])
	if err != nil {
		return err
	}
	controller, err := s.controller()
	if err != nil {
		return err
	}
	asked, err := requests(ctx, s.b)
	if err != nil {
		return err
	}
	start, err := s.spent()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pause(ctx, *scaleRest); err != nil {
		return err
	}
	end, err := s.spent()
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	share := func(d time.Duration) float64 { return ms(d) / took }
	got["scale_speaker_idle_millicores"] = share(end.speakers-start.speakers) / float64(len(s.speakers))
	got["scale_controller_idle_millicores"] = share(end.controller - start.controller)
	s.progress(
		"idle millicores: %.1f of a speaker are not its heartbeat process",
		share(end.planning-start.planning)/float64(len(s.speakers)),
	)
	askedSince, err := requests(ctx, s.b)
	if err != nil {
		return err
	}
	speakers, rest := askedSince[testbed.Speaker]-asked[testbed.Speaker],
		askedSince[testbed.Controller]-asked[testbed.Controller]
	got["scale_1000_nodes_api_qps"] = speakers/took/float64(len(s.speakers))*1000 + rest/took
	s.progress(
		"requests in %.0f s without watches: %.0f of %d speakers, %.0f of the controller",
		took,
		speakers,
		len(s.speakers),
		rest,
	)
	for name, d := range map[string]daemon{"speaker": speaker, "controller": controller} {
		m, err := memoryOf(d.all...)
		if err != nil {
			return err
		}
		got["scale_"+name+"_mib"] = m.rss
		s.progress("%s: %.1f MiB, %.1f if what processes share counts once", name, m.rss, m.pss)
		if err := profile(ctx, d, name+"-heap.pb.gz", "heap"); err != nil {
			return err
		}
	}
	return s.profiles(ctx, "rest", restProfile)()
}
