/* Everything in its place. */

live.onStatistics = (statistics) => overview.add(statistics);
access.onToken = () => {
  overview.loadModel();
  live.restart();
  streamList.poll();
  selected.poll();
};
access.start();
overview.start();
overview.loadModel();
trying.start();
live.start();
streamList.start();
selected.start();
