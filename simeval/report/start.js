drawFacts();
if (MATCHED.length) wireMatched();
if (scores.recovery.length) drawRecovery();
results();
selection();
drawDrops();
drawMethod();
const linked = location.hash.match(/^#episode=([0-9a-f]+)$/);
if (linked) open(linked[1]);
